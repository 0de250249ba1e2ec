"""The operators of two frameworks that are lined up by paths, functions and order, and why others are open."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npucmp.align.cross_framework.aliases import framework_of, has_parts, neutral_operators, parameter
from npucmp.align.cross_framework.alignment import line_up
from npucmp.align.cross_framework.msprobe_mapping import Api, MsprobeMapping
from npucmp.dump.limits import ANYWHERE
from npucmp.model import Match, Operator, Statistics, TensorRef
from tests.align.craft import a_run
from tests.align.cross_framework.craft import Files, W, X, Y, drawn

WIDE = (4, 8)


def tensors(name, reads, writes, statistics=None):
    some = [(f"input:{at}", one) for at, one in enumerate(reads)] + [
        (f"output:{at}", one) for at, one in enumerate(writes)
    ]
    return tuple(
        TensorRef(slot, "float32", shape, label=f"{name} {slot}", statistics=statistics) for slot, shape in some
    )


def module(path, kind="Linear", prefix="Module", reads=(WIDE,), writes=(WIDE,), phase="forward", call=0):
    name = f"{prefix}.{path}.{kind}.{phase}.{call}"
    return Operator(name, kind, name, phase, 0, tensors(name, reads, writes), call=name.replace(phase, "call"),
                    path=f"{prefix}.{path}")  # fmt: skip


def function(name, number=0, around="", writes=(WIDE,), prefix="Torch", statistics=None):
    full = f"{prefix}.{name}.{number}.forward"
    scope = f"{'Cell' if prefix == 'Mint' else 'Module'}.{around}.Block.forward.0" if around else ""
    return Operator(full, name, f"{prefix}.{name}.forward", "forward", 0, tensors(full, (WIDE,), writes, statistics),
                    call=full, scope=scope, unique=False)  # fmt: skip


def run(*operators):
    return a_run([one._replace(order=order) for order, one in enumerate(operators)])


def lined_up(target, golden, mapped=(), vendor=MsprobeMapping()):
    return line_up(run(*target), run(*golden), mapped, vendor, ANYWHERE)


def partners(found):
    return [
        (one.target.order, one.golden.order, one.via) for one in sorted(found.matches, key=lambda one: one.target.order)
    ]


# Modules


def test_modules_of_one_path_are_partners_execution_by_execution():
    target = [
        module("net.a", "Dense", "Cell"),
        module("net.b", "Dense", "Cell"),
        module("net.a", "Dense", "Cell", call=1),
        module("net.a", "Dense", "Cell", phase="backward"),
    ]
    golden = [module("net.b"), module("net.a"), module("net.a", call=1), module("net.a", call=2),
              module("net.a", phase="backward")]  # fmt: skip
    found = lined_up(target, golden)
    assert partners(found) == [(0, 1, "name"), (1, 0, "name"), (2, 2, "name"), (3, 4, "name")] and found.open == {}
    assert {(one.confidence, one.settled, one.inside) for one in found.matches} == {(0.9, True, ())}


@pytest.mark.parametrize(
    "own, other, is_partner",
    [
        (WIDE, WIDE, True),
        (WIDE, (2, 2, 8), True),
        (WIDE, (4, 9), False),
        (WIDE, None, True),  # nothing that it writes was recorded
    ],
)
def test_modules_of_one_path_that_write_other_shapes_are_open(own, other, is_partner):
    target = [module("net.a", "Dense", "Cell", writes=(own,)), module("net.b", "Dense", "Cell")]
    golden = [module("net.a", writes=(other,) if other else ()), module("net.b")]
    found = lined_up(target, golden)
    assert partners(found) == [(0, 0, "name")] * is_partner + [(1, 1, "name")]
    assert found.open == ({} if is_partner else {
        ("target", 0): f"{golden[0].name} has the same path, but it writes [4, 9], this operator [4, 8]",
        ("golden", 0): f"{target[0].name} has the same path, but they are not alike",
    })  # fmt: skip


@pytest.mark.parametrize("change", [{"slot": ""}, {"problem": "cut"}])
def test_a_module_with_a_tensor_that_cannot_be_read_is_a_partner(change):
    target, golden = module("net.a", "Dense", "Cell"), module("net.a", writes=((4, 9),))
    golden = golden._replace(tensors=(golden.tensors[0]._replace(**change), *golden.tensors[1:]))
    assert partners(lined_up([target], [golden])) == [(0, 0, "name")]


FUSED = module("net.attn.qkv_proj", writes=((4, 24),))
PARTS = [module(f"net.attn.{one}_proj") for one in "qkv"]


@pytest.mark.parametrize(
    "own, other, why",
    [
        ({}, {}, ""),
        ({"writes": (WIDE, WIDE)}, {}, "it writes 1 tensors of this shape, this operator 2"),
        ({}, {"writes": (WIDE, WIDE)}, "it writes 2 tensors of this shape, this operator 1"),
        ({"writes": (WIDE, (3,))}, {}, ""),  # of another shape
        ({"reads": ((4, 7),)}, {}, "it reads [4, 8], this operator [4, 7]"),
        ({"reads": ((7,),)}, {}, ""),
        ({}, {"reads": ((7,),)}, ""),
        ({"reads": ()}, {}, ""),
        ({"kind": "RMSNorm", "writes": (WIDE, WIDE)}, {"kind": "RMSNorm"}, ""),  # it adds to the residual
    ],
)
@pytest.mark.parametrize("is_fused", [True, False])
def test_modules_of_runs_with_fused_products_read_and_write_alike(own, other, why, is_fused):
    """vLLM and transformers have equal paths for unlike modules."""
    target, golden = [module("net.a", **own)], [module("net.a", **other)]
    if is_fused:
        target, golden = [*target, FUSED], [*golden, *PARTS]
    found = lined_up(target, golden)
    assert ((0, 0, "name") in partners(found)) is (not why or not is_fused)
    note = found.open.get(("target", 0), "")
    assert note == (f"{golden[0].name} has the same path, but {why}" if why and is_fused else "")


def test_parts_without_evidence_are_open():
    found = lined_up([FUSED], [*PARTS[:2], module("net.attn.v_proj", writes=((4, 9),))])
    why = "8 + 8 + 9 columns do not add up to 24"
    names = ", ".join(f"Module.net.attn.{one}_proj.Linear.forward.0" for one in "qkv")
    assert found.open[("target", 0)] == f"it may consist of {names}, but {why}"
    assert found.open[("golden", 1)] == f"it may be a part of {FUSED.name}, but {why}"
    turned = lined_up([*PARTS[:2], module("net.attn.v_proj", writes=((4, 9),))], [FUSED])
    assert {side for side, _ in turned.open} == {"target", "golden"} and len(turned.open) == 4


# Functions


@pytest.mark.parametrize(
    "target, golden, found",
    [
        ([("add", "net.a"), ("add", "net.b")], [("add", "net.b"), ("add", "net.a")], [(0, 1, "name"), (1, 0, "name")]),
        ([("add", "net.a")] * 2, [("add", "net.a")] * 2, [(0, 0, "name"), (1, 1, "name")]),
        ([("add", "net.a")], [("add", "net.a")] * 2, []),
        ([("add", "net.a")], [("mul", "net.a")], []),
        ([("add", "")], [("add", "")], [(0, 0, "order")]),
        ([("add", "net.a")], [("add", "net.b")], []),  # in another module
        ([("add", "net.a")], [("add", "net.a.c")], [(0, 0, "order")]),  # within it
        ([("add", "net.a")], [("add", "")], [(0, 0, "order")]),
    ],
)
def test_functions_of_one_kind_in_one_module_are_partners(target, golden, found):
    modules = [module("net.x", "Dense", "Cell")], [module("net.x")]
    own = [function(name, at, around, prefix="Mint") for at, (name, around) in enumerate(target)]
    other = [function(name, at, around) for at, (name, around) in enumerate(golden)]
    result = lined_up([*own, *modules[0]], [*other, *modules[1]])
    assert [one for one in partners(result) if one[0] < len(own)] == found


def test_functions_that_write_other_shapes_are_no_partners():
    own = [function("add", at, "net.a", prefix="Mint") for at in range(2)]
    other = [function("add", at, "net.a", ((4, 8 + at),)) for at in range(2)]
    assert (1, 1, "name") not in partners(lined_up(own, other))


# By order


def test_functions_between_matches_are_partners_if_they_leave_no_choice():
    """Equally many of one type and shape; else the candidates are named."""
    ends = [module("net.a", "Dense", "Cell"), module("net.b", "Dense", "Cell")], [module("net.a"), module("net.b")]
    target = [ends[0][0], function("add", 0, prefix="Mint"), ends[0][1], function("add", 1, prefix="Mint")]
    golden = [ends[1][0], function("add", 0), ends[1][1], function("add", 1), function("add", 2)]
    found = lined_up(target, golden)
    assert (1, 1, "order") in partners(found) and len(found.matches) == 3
    words = "its partner is ambiguous: {}; name it with --mapping"
    assert found.open == {
        ("target", 3): words.format("Torch.add.1.forward or Torch.add.2.forward"),
        ("golden", 3): words.format("Mint.add.1.forward"),
        ("golden", 4): words.format("Mint.add.1.forward"),
    }


@pytest.mark.parametrize("count, rest", [(3, ""), (4, " or 1 more"), (5, " or 2 more")])
def test_three_candidates_are_named(count, rest):
    found = lined_up([function("add", 0, prefix="Mint")], [function("add", at) for at in range(count)])
    names = " or ".join(f"Torch.add.{at}.forward" for at in range(3))
    assert found.open["target", 0] == f"its partner is ambiguous: {names}{rest}; name it with --mapping"


KNOWN, OTHER = Statistics(1.0, -1.0, 0.25, 3.0), Statistics(2.0, -1.0, 0.25, 3.0)


@pytest.mark.parametrize(
    "records, is_matched",
    [([KNOWN, KNOWN], True), ([KNOWN, OTHER], False), ([None, None], False), ([KNOWN._replace(norm=None)] * 2, False)],
)
def test_equal_records_leave_no_choice(records, is_matched):
    """Those of the run that has more."""
    target = [function("add", 0, prefix="Mint", statistics=OTHER._replace(max=9.0))]
    golden = [function("add", at, statistics=one) for at, one in enumerate(records)]
    assert bool(lined_up(target, golden).matches) is is_matched


def test_functions_of_another_shape_or_type_have_no_candidates():
    target = [function("add", 0, prefix="Mint"), function("exp", 0, prefix="Mint")]
    golden = [function("add", 0, writes=((4, 9),)), function("sin", 0)]
    found = lined_up(target, golden)
    assert found.matches == [] and found.open == {}


# Mappings of a user


def test_matches_that_a_user_gave_are_kept_with_the_slots_of_the_mapping():
    target, golden = function("one", prefix="Mint"), function("other")
    given = [Match(target, golden, "mapping", 1.0)]
    assert lined_up([target], [golden], given).matches == given
    vendor = MsprobeMapping(apis={target.name: Api(target.name, "Torch.other", {"input:0": "input:0"}, ("input",))})
    (found,) = lined_up([target], [golden], given, vendor).matches
    assert found.settled and [one.slot for one in found.golden.tensors] == ["input:0", "output:0"]
    assert [one.label for one in found.golden.tensors] == [one.label for one in golden.tensors]


def test_partners_by_a_file_of_msprobe_are_mapped():
    """If names alone do not show them."""
    target = [module(f"net.{one}", "Dense", "Cell") for one in "abc"]
    golden = [module(f"net.{one}") for one in "yxc"]
    vendor = MsprobeMapping(layers={"TopLayer": {"net.a": "net.x", "net.b": "net.y"}})
    found = lined_up(target, golden, vendor=vendor)
    assert partners(found) == [(0, 1, "mapping"), (1, 0, "mapping"), (2, 2, "name")]
    assert [one for one in partners(lined_up(target, golden)) if one[2] == "name"] == [(2, 2, "name")]


# Weights


def of_weights(files, prefix, weight, output, at):
    """A product of ATB, or of a module."""
    if prefix:
        name = f"Module.net.{prefix}.Linear.forward.0"
        made = files.operator(name, input_0=X, param_weight=weight, output_0=output)
        return made._replace(path=f"Module.net.{prefix}", op_type="Linear", order=at)
    made = files.operator(f"0_Prefill_layer/{at}_LinearOperation", "LinearOperation", input_0=X, input_1=weight,
                          output_0=output)  # fmt: skip
    return made._replace(order=at)


@pytest.mark.parametrize("is_turned", [False, True])
def test_operators_of_atb_are_partners_by_their_weights(tmp_path, is_turned):
    """One that computes several products is matched with all of them."""
    files = Files(tmp_path)
    other = drawn(9, 6, seed=5), drawn(5, 9, seed=6)
    atb = [of_weights(files, "", *other, 0), of_weights(files, "", np.concatenate(W), np.concatenate(Y, 1), 1)]
    torch = [*(of_weights(files, name, w, y, at) for at, (name, w, y) in enumerate(zip("abc", W, Y))),
             of_weights(files, "d", *other, 3)]  # fmt: skip
    runs = replace(a_run(atb), format="atb"), a_run(torch)
    found = line_up(*(runs[::-1] if is_turned else runs), (), MsprobeMapping(), ANYWHERE)
    single, *parts = sorted(found.matches, key=lambda one: (one.via != "weights", one.target.order))
    assert (single.via, single.confidence) == ("weights", 0.9)
    assert (single.target.order, single.golden.order) == ((3, 0) if is_turned else (0, 3))
    weights = "param:weight" if is_turned else "input:1"
    assert {one.slot: one.shape for one in single.golden.tensors}[weights] == (9, 6)
    assert [(one.via, one.target.order, one.inside) for one in parts] == (
        [("parts", at, (1,)) for at in range(3)] if is_turned else [("parts", 1, (0, 1, 2))]
    )


# Names


@pytest.mark.parametrize(
    "names, format_, detail, framework",
    [
        (["Cell.a.Dense.forward.0"], "", "", "mindspore"),
        (["Mint.add.0.forward", "Torch.add.0.forward"], "", "", "mindspore"),
        (["Tensor.add.0.forward"], "", "", ""),
        (["Tensor.add.0.forward"], "", "pytorch 2.1", "torch"),
        (["Tensor.add.0.forward"], "", "mindspore 2.3", "mindspore"),
        (["Torch.add.0.forward"], "", "mindspore 2.3", "torch"),
        (["Torch.add.0.forward"], "atb", "", "atb"),
        ([], "", "", ""),
    ],
)
def test_the_framework_of_a_run(names, format_, detail, framework):
    operators = [function("add")._replace(name=one) for one in names]
    assert framework_of(replace(run(*operators), format=format_, detail=detail)) == framework


def places(target, golden):
    left, right = neutral_operators(run(*target), run(*golden), MsprobeMapping())
    return [".".join(one.place) for one in left], [".".join(one.place) for one in right]


@pytest.mark.parametrize(
    "target, golden, found",
    [
        (["network.net.a", "network.net.b"], ["net.a", "net.b"], ["net.a", "net.b"]),
        (["net.a", "net.b"], ["net.a", "net.b"], ["net.a", "net.b"]),
        (["x.net.a", "x.net.b"], ["y.net.a", "y.net.b"], ["net.a", "net.b"]),
        (["network.net.a", "other.net.b"], ["net.a", "net.b"], ["network.net.a", "other.net.b"]),  # no common word
        (["x.a", "x.b"], ["a", "c"], ["a", "c"]),  # the only one left of one class is renamed
        (["net.a", "net.b"], ["net.c", "net.d"], ["net.a", "net.b"]),  # two are left
        (["net.a.q", "net.a.r"], ["net.b.q", "net.b.r"], ["q", "r"]),
    ],
)
def test_words_around_a_model_and_names_of_modules(target, golden, found):
    own, _ = places([module(one, "Dense", "Cell") for one in target], [module(one) for one in golden])
    assert own == found


def test_what_a_renamed_module_contains_moves_with_it():
    target = [module("net.attention", "Attention", "Cell"), module("net.attention.q", "Dense", "Cell"),
              module("net.b", "Dense", "Cell"), function("add", 0, "net.attention", prefix="Mint")]  # fmt: skip
    golden = [module("net.self_attn", "Attention"), module("net.self_attn.q"), module("net.b"), function("add")]
    own, _ = places(target, golden)
    assert own == ["net.self_attn", "net.self_attn.q", "net.b", "net.self_attn"]


@pytest.mark.parametrize(
    "prefixes, found",
    [
        (("Cell", "Module"), (["net.x", "net.y"], ["net.a", "net.b"])),
        (("Module", "Cell"), (["net.a", "net.b"], ["net.x", "net.y"])),  # the side of MindSpore, whichever it is
        (("Module", "Module"), (["net.x", "net.y"], ["net.a", "net.b"])),  # else the target's
    ],
)
def test_a_file_of_msprobe_gives_the_names_of_one_side(prefixes, found):
    sides = [run(*(module(f"net.{one}", "Dense", prefix) for one in "ab"), module("net.c", "Other", prefix))
             for prefix in prefixes]  # fmt: skip
    vendor = MsprobeMapping(layers={"TopLayer": {"net.a": "net.x", "net.b": "net.y"}})
    left, right = neutral_operators(*sides, vendor)
    assert tuple([".".join(one.place) for one in side[:2]] for side in (left, right)) == found


def test_a_file_of_msprobe_names_the_contents_of_a_class():
    target = [
        module("net.attn", "Attention", "Cell"),
        module("net.attn.q", "Dense", "Cell"),
        module("net.q", "Dense", "Cell"),
    ]
    golden = [module(one) for one in ("net.attn", "net.attn.query", "net.q", "net.attn.r")]
    vendor = MsprobeMapping(layers={"Attention": {"q": "query"}})
    left, _ = neutral_operators(run(*target), run(*golden), vendor)
    assert [".".join(one.place) for one in left] == ["net.attn", "net.attn.query", "net.q"]


@pytest.mark.parametrize(
    "slot, name",
    [("param:gamma", "param:weight"), ("grad:beta", "grad:bias"), ("param:scale", "param:scale"),
     ("input:gamma", "input:gamma"), ("param", "param")],
)  # fmt: skip
def test_names_of_parameters(slot, name):
    assert parameter(slot) == name


@pytest.mark.parametrize(
    "target, golden, found",
    [
        ("n.qkv_proj", "n.q_proj n.k_proj n.v_proj", True),
        ("n.w1 n.w3", "n.w13", True),
        ("n.qkv_proj", "n.q_proj n.k_proj", False),
        ("n.qkv_proj", "n.q_proj n.k_proj n.v_proj n.qkv_proj", False),
        ("n.a", "n.q_proj n.k_proj n.v_proj", False),
    ],
)
def test_one_run_may_have_the_parts_of_the_other(target, golden, found):
    sides = [{tuple(one.split(".")) for one in side.split()} | {()} for side in (target, golden)]
    assert has_parts(*sides) is has_parts(*sides[::-1]) is found
