"""What a fused operator is compared with: must-match and must-not-match tables over operators made by hand."""

from __future__ import annotations

import pytest

from npucmp.align import align, pairs
from npucmp.align.fused import guess_fusion, match, match_parts
from npucmp.model import Operator, TensorRef
from tests.align.craft import a_run

CONV, BN, RELU = "net/conv/Conv2D", "net/conv/bn", "net/conv/Relu"
FUSED = CONV + RELU  # the name that the compiler made


def tensor(slot, origin="", label="", source="") -> TensorRef:
    return TensorRef(slot, "float32", (2, 3), label=label, origin=origin, source=source)


def operator(name, *tensors, originals=(), inserted=False) -> Operator:
    """One of a GE run: tensors as "output:0=net/Relu:0" with what they stand for."""
    made = [tensor(*text.split("=")) if "=" in text else tensor(text) for text in tensors]
    return Operator(name, "", name, "", 0, tuple(made), originals=tuple(originals), inserted=inserted)


def written(*names) -> list[Operator]:
    """A reference that kept outputs only; a name may come again. A tensor's label is "{its operator}@{its place}"."""
    return [
        Operator(name, "", name, "", order, (tensor("output:0", label=f"{name}@{order}"),), reads_recorded=False)
        for order, name in enumerate(names)
    ]


def run(*operators) -> list[Operator]:
    return [one._replace(order=order) for order, one in enumerate(operators)]


def compared(target, golden) -> list[list[str]]:
    """For each match "{name}: {slot}={label of the golden tensor}"."""
    return [
        [found.target.name, *(f"{one.slot}={one.label}" for one in found.golden.tensors)]
        for found in match(target, golden, [])
    ]


conv = operator(FUSED, "input:0=x:0", "output:0=net/conv/Relu:0", originals=(CONV, BN, RELU))
cast = operator("trans_Cast_1", "input:0=x:0", "output:0=x:0", inserted=True)
two = operator("net/split", "output:0=net/a:0", "output:1=net/b:0", originals=("net/a", "net/b"))

MUST_MATCH = [
    ("an output with what its descriptor names", [conv], ["x", CONV, BN, RELU], [
        [FUSED, "input:0=x@0", f"output:0={RELU}@3"]]),
    ("an input that nobody kept is left out", [conv], [CONV, BN, RELU], [[FUSED, f"output:0={RELU}@2"]]),
    ("an inserted operator with what it hands on", [cast], ["x"], [["trans_Cast_1", "input:0=x@0", "output:0=x@0"]]),
    ("an escaped reference", [conv], ["net_conv_Relu"], [[FUSED, "output:0=net_conv_Relu@0"]]),
    ("outputs of two operators", [two], ["net/a", "net/b"], [["net/split", "output:0=net/a@0", "output:1=net/b@1"]]),
    ("one of two outputs", [two], ["net/b"], [["net/split", "output:1=net/b@0"]]),
    ("what a session is fed", [cast], ["_arg_x_0_0"], [
        ["trans_Cast_1", "input:0=_arg_x_0_0@0", "output:0=_arg_x_0_0@0"]]),
    ("executions one by one", [cast, cast], ["x", "x"], [
        ["trans_Cast_1", "input:0=x@0", "output:0=x@0"], ["trans_Cast_1", "input:0=x@1", "output:0=x@1"]]),
    ("the newest of the reference", [cast], ["x", "x"], [["trans_Cast_1", "input:0=x@1", "output:0=x@1"]]),
    ("the newest of the target", [cast, cast], ["x"], [["trans_Cast_1", "input:0=x@0", "output:0=x@0"]]),
]  # fmt: skip


@pytest.mark.parametrize(
    "target, golden, expected", [row[1:] for row in MUST_MATCH], ids=[row[0] for row in MUST_MATCH]
)
def test_must_match(target, golden, expected):
    assert compared(run(*target), written(*golden)) == expected


MUST_NOT_MATCH = [
    ("no graph", [operator(FUSED, "input:0", "output:0")], written(CONV, RELU)),
    ("another operator", [conv], written("net/other")),
    ("another output of the operator", [operator("a", "output:0=net/conv/Relu:1")], written(RELU)),
    ("inputs alone", [operator("a", "input:0=net/conv/Relu:0", "output:0")], written(RELU)),
    ("an inserted operator that nothing was dumped for", [cast], written("y")),
    ("an inserted operator of the reference is no witness", [conv], run(operator(RELU, "output:0", inserted=True))),
    ("the same operator of the same graph", run(conv), run(conv)),
]


@pytest.mark.parametrize("target, golden", [row[1:] for row in MUST_NOT_MATCH], ids=[row[0] for row in MUST_NOT_MATCH])
def test_must_not_match(target, golden):
    assert match(run(*target), golden, []) == []


def test_a_made_up_partner_bears_the_name_of_the_graph_and_holds_what_lies_inside():
    (found,) = match(run(conv), written("x", "net_conv_Conv2D", "net_conv_bn", "net_conv_Relu"), [])
    assert (found.golden.name, found.golden.order, found.via, found.confidence) == (RELU, 3, "fused", 1.0)
    assert found.inside == (1, 2, 3)
    assert not any(one.origin for one in found.golden.tensors)


def test_an_operator_of_its_own_name_is_matched_by_name():
    own = operator("net/pool", "output:0=net/pool:0", originals=("net/pool",))
    (found,) = match(run(own), written("net_pool"), [])
    assert found.via == "name"


def test_the_reference_may_be_a_ge_run_itself():
    """Fusion off: a reference with its own TransData, whose tensors go by the names of the network too."""
    golden = run(
        operator("off_Cast", "input:0=w:0", "output:0=w:0", inserted=True),
        operator(CONV, "input:0=x:0", "input:1=w:0", "output:0=net/conv/Conv2D:0", originals=(CONV,)),
        operator(RELU, "output:0=net/conv/Relu:0", originals=(RELU,)),
    )
    weight = operator("trans_Cast_2", "input:0=w:0", "output:0=w:0", inserted=True)
    found = match(run(weight, conv), golden, [])
    assert [one.golden.tensors[0].shape for one in found] == [(2, 3), (2, 3)]
    assert [one.golden.name for one in found] == ["w", RELU]
    assert [one.golden.order for one in found] == [0, 2]  # of what nothing dumped wrote, its first reader


def test_inserted_operators_of_two_models_share_a_name_but_are_no_executions():
    other = operator("trans_Cast_1", "output:0=y:0", inserted=True)
    assert compared(run(cast, other), written("x", "y")) == [
        ["trans_Cast_1", "input:0=x@0", "output:0=x@0"],
        ["trans_Cast_1", "output:0=y@1"],
    ]


def test_what_lies_inside_a_fused_operator_is_not_missing():
    target, golden = a_run(run(cast, conv)), a_run(written("x", CONV, BN, RELU, "net/end"))
    alignment = align(target, golden)
    assert [one.name for one in alignment.only_golden] == ["net/end"]
    assert [one.note for one in pairs(target, golden, alignment) if not one.target] == [
        "the target run has no such operator"
    ]


def test_earlier_executions_are_said_to_be_so():
    target, golden = a_run(run(cast, conv, cast, conv)), a_run(written("x", CONV, RELU))
    notes = {pair.note for pair in pairs(target, golden, align(target, golden)) if not pair.golden}
    assert notes == {"an earlier execution; the other run has fewer, and the newest were paired"}


def test_an_inserted_operator_without_partner_is_named_so():
    target, golden = a_run(run(conv, cast)), a_run(written(CONV, RELU))
    notes = {pair.target_op.name: pair.note for pair in pairs(target, golden, align(target, golden)) if not pair.golden}
    assert notes["trans_Cast_1"] == "inserted by the graph compiler: no operator of the network corresponds to it"


PARTS = [
    ("two names", "conv1relu1", ["conv1", "relu1"], ["conv1", "relu1"]),
    ("three names", "conv1bn1relu1", ["conv1", "bn1", "relu1"], ["conv1", "bn1", "relu1"]),
    ("paths", "a/Conv2Da/Relu", ["a_Conv2D", "a_Relu"], ["a_Conv2D", "a_Relu"]),
    ("the longest name first", "conv11relu", ["conv1", "conv11", "relu", "1relu"], ["conv11", "relu"]),
    ("a longer name that leads nowhere", "abc", ["ab", "a", "bc"], ["a", "bc"]),
    ("a single name", "conv1", ["conv1", "relu1"], None),
    ("a rest", "conv1relu1x", ["conv1", "relu1"], None),
    ("no name at all", "pool", ["conv1", "relu1"], None),
]


@pytest.mark.parametrize("name, golden, expected", [row[1:] for row in PARTS], ids=[row[0] for row in PARTS])
def test_names_made_of_names(name, golden, expected):
    found = match_parts(run(operator(name, "output:0")), written(*golden), [])
    assert [[golden[order] for order in one.inside] for one in found] == ([expected] if expected else [])
    assert all(one.golden.name == expected[-1] and one.via == "fused" and one.confidence < 1 for one in found)


def test_names_made_of_names_by_execution():
    target = run(operator("ab", "output:0"), operator("ab", "output:0"))
    found = match_parts(target, written("a", "b", "a", "b", "b"), [])
    assert [(one.target.order, one.inside) for one in found] == [(0, (0, 3)), (1, (2, 4))]
    assert [one.target.order for one in match_parts(target, written("a", "b"), [])] == [1]


def test_a_name_of_many_parts_is_quick():
    assert match_parts(run(operator("a" * 4000 + "b", "output:0")), written("a", "aa", "aaa"), []) == []


def test_operators_that_no_compiler_touched_pair_by_what_they_are():
    """The kernels of attention in one operator or in four: "TransposeD-op1" is another one on either side."""

    def run(*calls):
        operators = []
        for order, (name, read, shape) in enumerate(calls):
            kind, is_numbered = name.partition("-op")[0], "TransposeD" in name
            tensors = (
                TensorRef("input:0", "float32", (2, 3, 4), source=f"{read}:0", origin=f"{read}:0"),
                TensorRef("output:0", "float32", shape, origin=f"{name}:0"),
            )
            operators.append(Operator(name, kind, kind, "", order, tensors, call=name, unique=not is_numbered))
        return a_run(operators)

    fused = run(("q", "x", (2, 3, 4)), ("TransposeD-op0", "q", (3, 2, 4)), ("attention", "TransposeD-op0", (3, 2, 4)),
                ("TransposeD-op1", "attention", (2, 3, 4)), ("Reshape-op0", "TransposeD-op1", (6, 4)))  # fmt: skip
    plain = run(("q", "x", (2, 3, 4)), ("TransposeD-op0", "q", (3, 2, 4)),
                ("TransposeD-op1", "TransposeD-op0", (3, 4, 2)), ("product", "TransposeD-op1", (3, 2, 4)),
                ("TransposeD-op2", "product", (2, 3, 4)),
                ("Reshape-op0", "TransposeD-op2", (6, 4)))  # fmt: skip
    found = align(fused, plain)
    assert [(match.target.name, match.golden.name) for match in found.matches] == [
        ("q", "q"),
        ("TransposeD-op0", "TransposeD-op0"),
        ("TransposeD-op1", "TransposeD-op2"),
        ("Reshape-op0", "Reshape-op0"),
    ]
    assert all(pair.golden is not None for pair in pairs(fused, plain, found) if pair.operator.name == "Reshape-op0")


def shaped(name, *shapes, order=0, inserted=False):
    refs = tuple(TensorRef(f"output:{at}", "float32", shape) for at, shape in enumerate(shapes))
    return Operator(name, "", name, "", order, refs, inserted=inserted)


BIG, SMALL = (4, 8, 8), (4, 2, 2)


@pytest.mark.parametrize(
    "fused, plain, originals, by_name, by_order",
    [
        ([("conv", BIG), ("relu", BIG)], [("conv", BIG), ("relu", BIG)], [(), ()], [], []),
        ([("convrelu", BIG)], [("conv", BIG), ("relu", BIG)], [("conv", "relu")], ["convrelu"], []),
        ([("convrelu", BIG)], [("conv", BIG), ("bn", BIG), ("relu", BIG)], [("conv", "bn", "relu")], ["convrelu"], []),
        ([("convrelu", BIG)], [("conv", BIG), ("bn", SMALL), ("relu", BIG)], [("conv", "relu")], ["convrelu"], []),
        # the name of the first one: up to the last operator behind it with its shape
        ([("conv", BIG), ("end", SMALL)], [("conv", BIG), ("bn", BIG), ("pool", SMALL), ("end", SMALL)],
         [("conv", "bn"), ()], [], ["conv"]),
        ([("conv", BIG), ("end", SMALL)], [("conv", BIG), ("pool", SMALL), ("up", BIG), ("end", SMALL)],
         [("conv", "pool", "up"), ()], [], ["conv"]),
        ([("conv", BIG), ("end", SMALL)], [("conv", BIG), ("pool", SMALL), ("end", SMALL)], [(), ()], [], []),
        ([("conv", BIG), ("strange", SMALL)], [("conv", BIG), ("bn", BIG)], [(), ()], [], []),  # it may contain bn
        ([("convrelu", BIG)], [("conv", BIG), ("relu", BIG), ("bn", BIG)], [("conv", "relu", "bn")], [], ["convrelu"]),
        ([("other", BIG)], [("conv", BIG)], [()], [], []),
        ([("abc", BIG)], [("a", BIG), ("bc", BIG), ("ab", BIG), ("c", BIG)], [()], [], []),  # two ways to split it
    ],
)  # fmt: skip
def test_the_originals_of_fused_operators_by_names_and_order(fused, plain, originals, by_name, by_order):
    run_of = [a_run([shaped(*one, order=order) for order, one in enumerate(side)]) for side in (fused, plain)]
    found, names, places = guess_fusion(*run_of)
    assert [one.originals for one in found.operators] == originals and (names, places) == (by_name, by_order)
    origins = [[tensor.origin for tensor in one.tensors] for one in found.operators]
    assert origins == [[f"{one[-1]}:0"] if one else [""] for one in originals]


def test_inserted_operators_take_no_part_in_a_guess():
    fused = a_run([shaped("conv", BIG), shaped("cast", BIG, order=1, inserted=True)])
    plain = a_run([shaped("conv", BIG), shaped("bn", BIG, order=1, inserted=True), shaped("relu", BIG, order=2)])
    found, _, by_order = guess_fusion(fused, plain)
    assert [one.originals for one in found.operators] == [("conv", "relu"), ()] and by_order == ["conv"]


def test_each_output_of_a_guessed_operator_has_an_origin():
    found, *_ = guess_fusion(a_run([shaped("ab", BIG, SMALL)]), a_run([shaped("a", BIG), shaped("b", BIG, order=1)]))
    assert [one.origin for one in found.operators[0].tensors] == ["b:0", "b:1"]


# Inputs that no operator wrote

UNKNOWN = TensorRef("input:1", "float32", (2, 3), source="w:0", label="of the target")


@pytest.mark.parametrize(
    "own, golden, originals, outputs, is_read",
    [
        ({}, {}, 1, 1, True),
        ({}, {}, 2, 1, False),  # which of the originals read it is not known
        ({}, {}, 1, 2, False),
        ({"shape": (3, 3)}, {}, 1, 1, False),
        ({"slot": "input:2"}, {}, 1, 1, False),
        ({"source": ""}, {}, 1, 1, False),
        ({"source": "made:0"}, {}, 1, 1, False),  # an operator of the target wrote it
        ({}, {"origin": "v:0"}, 1, 1, False),
    ],
)
def test_an_input_without_a_producer_is_what_the_original_read(own, golden, originals, outputs, is_read):
    names = [f"net/{at}" for at in range(2)]
    tensors = [f"output:{at}=net/{at}:0" for at in range(outputs)]
    fused = operator("kernel", *tensors, originals=names[:originals])
    fused = fused._replace(tensors=(*fused.tensors, UNKNOWN._replace(**own)))
    read = UNKNOWN._replace(source="", label="of the golden")._replace(**golden)
    reference = written(*names)
    reference[0] = reference[0]._replace(tensors=(*reference[0].tensors, read))
    (found,) = [one for one in match(run(fused, operator("made", "output:0")), reference, []) if one.target == fused]
    inputs = [(one.slot, one.label, one.source) for one in found.golden.tensors if not one.is_output]
    assert inputs == ([("input:1", "of the golden", "w:0")] if is_read else [])


def test_an_output_that_is_known_and_an_input_that_is_known_come_once():
    fused = operator("kernel", "input:0=x:0", "output:0=net/0:0", originals=["net/0"])
    fused = fused._replace(tensors=tuple(one._replace(source="s:0") for one in fused.tensors))
    reference = written("x", "net/0")
    reference[1] = reference[1]._replace(tensors=(tensor("input:0", label="other"), *reference[1].tensors))
    (found,) = match([fused], reference, [])
    assert [(one.slot, one.label) for one in found.golden.tensors] == [("input:0", "x@0"), ("output:0", "net/0@1")]


# The first of several operators that together compute the originals

FIRST = operator("first", "input:0=x:0", "output:0", originals=["net/a", "net/b"])
LAST = operator("last", "input:0", "output:0=net/b:0", originals=["net/a", "net/b"])


@pytest.mark.parametrize(
    "target, golden, partners",
    [
        ([FIRST], ["x", "net/a", "net/b"], [("first", 2, ())]),  # no other match compares the originals
        ([FIRST, LAST], ["x", "net/a", "net/b"], [("first", 2, (1, 2)), ("last", 2, (1, 2))]),
        ([FIRST, FIRST], ["x", "net/a", "net/b"] * 2, [("first", 2, ()), ("first", 5, ())]),
        ([FIRST], ["net/a", "net/b"], []),  # its input was not kept
        ([FIRST], ["x", "net/c"], []),  # nor were the originals
        ([FIRST, FIRST], ["x", "net/a", "net/a", "x"], [("first", 1, ()), ("first", 2, ())]),
    ],
)
def test_an_operator_without_an_original_output_is_compared_by_its_inputs(target, golden, partners):
    found = match(run(*target), written(*golden), [])
    assert [(one.target.name, one.golden.order, one.inside) for one in found] == partners
    for one in found:
        slots = [each.slot for each in one.golden.tensors]
        assert slots == (["input:0"] if one.target.name == "first" else ["output:0"])


@pytest.mark.parametrize("outputs, slots", [(["output:0"], ["output:0"]), (["output:5"], ["output:0", "output:1"])])
def test_an_operator_made_of_names_has_the_outputs_of_the_last_one(outputs, slots):
    """Those in its own slots; all, if it has none of them."""
    golden = run(operator("a", "output:0"), operator("b", "input:0", "output:0", "output:1"))
    (found,) = match_parts(run(operator("ab", "input:0", *outputs)), golden, [])
    assert [one.slot for one in found.golden.tensors] == slots


def test_a_name_of_the_plain_run_is_not_split():
    fused = a_run([shaped("c", BIG), shaped("ab", BIG, order=1)])
    plain = a_run([shaped(name, BIG, order=order) for order, name in enumerate(["c", "ab", "a", "b"])])
    found, *_ = guess_fusion(fused, plain)
    assert [one.originals for one in found.operators] == [(), ("ab", "a", "b")]
