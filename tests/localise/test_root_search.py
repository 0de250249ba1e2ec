"""The decision of the search on each operator of a small network."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from npucmp.localise.search import RootSearch
from npucmp.model import Finding, Operator, ReplayedOutput, ReplayVerdict, Verdict
from tests.localise.networks import network, paired

CLEAN = ReplayedOutput(0, "output:0", verdict=ReplayVerdict.CLEAN, rel_l2=1e-9, rms_ratio=0.5)
GUILTY = CLEAN._replace(verdict=ReplayVerdict.GUILTY, rms_ratio=9.0)


@dataclass
class Recomputed:
    """The recomputed rows of operators by their types, of the target and the golden."""

    known: dict = field(default_factory=dict)
    sampled: tuple = ()

    def rows(self, side: int, operator: Operator):
        return [row for row in self.known.get(f"{operator.op_type}.{operator.phase}", ((), ()))[side : side + 1] if row]

    def gradients_as_golden(self, target: Operator, golden: Operator):
        return ()

    def is_sampled(self, operator: Operator) -> bool:
        return operator.op_type in self.sampled

    def is_setting(self, operator: Operator) -> bool:
        return False


def searched(findings: list[Finding], **options):
    search = RootSearch(findings, **options)
    for node in search.nodes:
        search.visit(node)
    return search.results()


def told(findings: list[Finding], **options) -> list[str]:
    """The roots in a line each: the place, the type, the pass if it is not the forward, the cause and the slot."""
    _, roots = searched(findings, **options)
    ops = [(one, one.pair.operator) for one in roots]
    return [
        f"{one.pair.order} {op.op_type}{'.backward' * (op.phase == 'backward')} {one.cause.value} {one.slot}"
        for one, op in ops
    ]


ORDINARY = {
    "nothing differs": (["linear x w -> y", "tanh y -> z"], []),
    "rounding": (["linear x w -> y~1e-7", "tanh y~1e-7 -> z~1e-7"], []),
    "an output differs": (["linear x w -> y~1e-2"], ["0 linear BORN output:0"]),
    "an error passes on": (
        ["linear x w -> y~1e-2", "tanh y~1e-2 -> z~1e-2"],
        ["0 linear BORN output:0", "1 tanh PROPAGATED output:0"],
    ),
    "an error grows": (
        ["linear x w -> y~1e-3", "relu y~1e-3 -> z~0.9"],
        ["0 linear BORN output:0", "1 relu WORSENED output:0"],
    ),
    "an error ends": (["linear x w -> y~1e-2", "tanh y~1e-2 -> z"], ["0 linear BORN output:0"]),
    "the worse of two outputs": (
        ["linear x w -> y~1e-2", "chunk y~1e-2 -> a~1e-3 b~1e-2"],
        ["0 linear BORN output:0", "1 chunk PROPAGATED output:1"],
    ),
    "an input differs from the output that it reads": (
        ["linear x w -> y", "tanh y~1e-2 -> z~1e-2"],
        ["1 tanh GAP input:0"],
    ),
    "an input of the network differs": (["tanh x~1e-2 -> z~1e-2"], ["0 tanh GAP input:0"]),
    "an input was not compared": (["linear x w -> y?", "tanh y? -> z~1e-2"], ["1 tanh UNKNOWN output:0"]),
    "behind an unknown input": (
        ["linear x w -> y?", "tanh y? -> z~1e-2", "relu z~1e-2 -> q~1e-2"],
        ["1 tanh UNKNOWN output:0", "2 relu PROPAGATED output:0"],
    ),
    "a branch without the error": (
        ["linear x w -> y~1e-2", "tanh a -> b~1e-2", "add y~1e-2 b~1e-2 -> z~1e-2"],
        ["0 linear BORN output:0", "1 tanh BORN output:0", "2 add PROPAGATED output:0"],
    ),
    "a copy of memory that no operator wrote": (["empty -> y~1", "clone y~1 -> q~1", "tanh q -> z"], []),
    "an operator beside such a copy": (
        ["empty -> y~1", "clone y~1 -> q~1", "tanh x -> z~1e-2"],
        ["2 tanh BORN output:0"],
    ),
    "memory that no operator wrote is computed with": (["empty -> y~1", "tanh y~1 -> z~1"], ["1 tanh BORN output:0"]),
    "a copy of unknown memory": (["empty -> y~1", "clone -> q~1"], ["1 clone BORN output:0"]),
    "a copy of a tensor": (["clone x -> y~1e-2"], ["0 clone BORN output:0"]),
    "a gradient reads a saved tensor that differs": (
        ["tanh@l x -> y~1e-2", "tanh.backward@l g -> h~1e-2"],
        ["0 tanh BORN output:0", "1 tanh.backward PROPAGATED output:0"],
    ),
    "a gradient without its forward": (["linear.backward@l g -> h~1e-2"], ["0 linear.backward UNKNOWN output:0"]),
    "a gradient whose forward agrees": (
        ["linear@l x w -> y", "linear.backward@l g -> h~1e-2"],
        ["1 linear.backward BORN output:0"],
    ),
    "an output that agrees beside one that differs": (
        ["chunk x -> y~1e-2 u", "relu u -> q~1e-2"],
        ["0 chunk BORN output:0", "1 relu BORN output:0"],
    ),
    "inputs alone": (["linear x w", "relu y~1e-2", "tanh z~1e-2"], ["1 relu GAP input:0"]),
    "NaN": (["tanh x -> n~nan"], ["0 tanh BORN output:0"]),
}  # fmt: skip
VALUES = {"n": np.ones((4, 5), np.float32), "nan": np.full((4, 5), np.nan, np.float32)}


@pytest.mark.parametrize("lines, roots", ORDINARY.values(), ids=ORDINARY)
def test_each_operator_has_a_part_in_the_error(lines, roots):
    assert told(network(*lines, **VALUES)) == roots


def test_memory_that_no_operator_wrote_and_its_copies_are_meaningless():
    findings, roots = searched(network("empty -> y~1", "clone y~1 -> q~1", "view q~1 -> r~1", "tanh x -> z"))
    assert ([one.rule for one in findings[:-2]], roots) == (["meaningless"] * 5, [])
    assert {one.verdict for one in findings[:-2]} == {Verdict.UNKNOWN}


def test_an_error_that_passes_on_has_its_explanation():
    findings, (_, root) = searched(network("linear x w -> y~1e-2", "tanh y~1e-2 -> z~1e-2"))
    assert findings[-1].verdict is Verdict.DIVERGED and findings[-1].explained_by == root.rule == "growth"
    assert findings[-1].explained_limit >= findings[-1].error > findings[-1].limit
    assert [one.kind for one in root.evidence] == ["inputs differ", "tensor"]


GROWING = ["linear x w -> a~2e-7", *(f"relu {x}~{2e-7 * 4.0**at:g} -> {y}~{2e-7 * 4.0 ** (at + 1):g}"
                                    for at, (x, y) in enumerate(zip("abcdefghi", "bcdefghij")))]  # fmt: skip


@pytest.mark.parametrize("count, some", [(5, 0), (10, 1)])
def test_errors_that_grow_step_by_step_are_a_root_without_another(count, some):
    findings, roots = searched(network(*GROWING[:count]))
    assert [(one.cause.value, one.rule) for one in roots] == [("WORSENED", "gradual")] * some
    assert (findings[-1].verdict is Verdict.DIVERGED) is bool(some)
    _, others = searched(network("tanh p -> q~1e-2", *GROWING[:count]))
    assert [one.rule for one in others if one.rule == "gradual"] == []


RECOMPUTED = {
    "both runs are within rounding": (["tanh x~1e-7 -> z~1e-3"], {"tanh.forward": (CLEAN, CLEAN)}, (), []),
    "the target is beyond": (
        ["tanh x -> z~1e-3"], {"tanh.forward": (GUILTY, CLEAN)}, (), ["0 tanh BORN output:0: inputs agree recompute"]),
    "both runs are beyond": (
        ["tanh x -> z~1e-3"], {"tanh.forward": (GUILTY, GUILTY)}, (), ["0 tanh BORN output:0: inputs agree"]),
    "a sampled operator is beyond": (
        ["tanh x -> z~1e-8"], {"tanh.forward": (GUILTY, CLEAN)}, ("tanh",), ["0 tanh BORN output:0: recompute"]),
    "no operator is sampled": (["tanh x -> z~1e-8"], {"tanh.forward": (GUILTY, CLEAN)}, (), []),
    "an error that came in": (
        ["linear x w -> y~1e-3", "relu y~1e-3 -> z~0.9"], {"relu.forward": (CLEAN, CLEAN)}, (),
        ["0 linear BORN output:0: inputs agree", "1 relu PROPAGATED output:0: inputs differ recompute"]),
    "an unknown input, the target within rounding": (
        ["linear x w -> y?", "tanh y? -> z~1e-2"], {"tanh.forward": (CLEAN, None)}, (),
        ["1 tanh PROPAGATED output:0: recompute unseen"]),
    "an unknown input, both runs within rounding": (
        ["linear x w -> y?", "tanh y? -> z~1e-2"], {"tanh.forward": (CLEAN, CLEAN)}, (),
        ["1 tanh UNKNOWN output:0: recompute unseen"]),
    "an unknown input, the target beyond": (
        ["linear x w -> y?", "tanh y? -> z~1e-2"], {"tanh.forward": (GUILTY, CLEAN)}, (),
        ["1 tanh BORN output:0: recompute unseen"]),
    "a gradient shows the fault of its forward": (
        ["tanh@t x -> z~1e-8", "tanh.backward@t g -> h~1e-2"],
        {"tanh.forward": (GUILTY, CLEAN), "tanh.backward": (GUILTY, CLEAN)}, (),
        ["0 tanh BORN output:0: recompute", "1 tanh.backward PROPAGATED output:0: forward recompute"]),
    "a gradient shows the fault of its forward behind another root": (
        ["exp p -> q~1e-2", "tanh@t x -> z~1e-8", "tanh.backward@t g -> h~1e-2"],
        {"tanh.forward": (GUILTY, CLEAN), "tanh.backward": (GUILTY, CLEAN)}, (),
        ["0 exp BORN output:0: inputs agree", "1 tanh BORN output:0: recompute",
         "2 tanh.backward PROPAGATED output:0: forward recompute"]),
    "a gradient follows its forward": (
        ["tanh@t x -> z~1e-2", "tanh.backward@t g -> h~1e-2"],
        {"tanh.forward": (GUILTY, CLEAN), "tanh.backward": (GUILTY, CLEAN)}, (),
        ["0 tanh BORN output:0: inputs agree recompute", "1 tanh.backward PROPAGATED output:0: saved differs"]),
    "a gradient that agrees behind its forward": (
        ["tanh@t x -> z~1e-2", "tanh.backward@t g -> h"],
        {"tanh.forward": (GUILTY, CLEAN), "tanh.backward": (GUILTY, CLEAN)}, ("tanh",),
        ["0 tanh BORN output:0: inputs agree recompute"]),
    "a gradient alone is beyond": (
        ["tanh@t x -> z", "tanh.backward@t g -> h~1e-2"],
        {"tanh.forward": (CLEAN, CLEAN), "tanh.backward": (GUILTY, CLEAN)}, (),
        ["1 tanh.backward BORN output:0: inputs agree recompute"]),
}  # fmt: skip


@pytest.mark.parametrize("lines, known, sampled, roots", RECOMPUTED.values(), ids=RECOMPUTED)
def test_a_recomputation_decides_before_bounds(lines, known, sampled, roots):
    _, got = searched(network(*lines), estimator=Recomputed(known, sampled))
    found = told(network(*lines), estimator=Recomputed(known, sampled))
    kinds = [" ".join(reason.kind for reason in one.evidence if reason.kind != "tensor") for one in got]
    assert [f"{line}: {kind}" for line, kind in zip(found, kinds)] == roots
    ignored = searched(network(*lines), estimator=Recomputed(known, sampled), by_round_off=False)[1]
    assert not any(one.rule == "recompute" for one in ignored)


@pytest.mark.parametrize("rows, cause, rule", [((CLEAN, None), "PROPAGATED", True), ((CLEAN, CLEAN), "UNKNOWN", False)])
def test_a_recomputation_is_the_rule_of_a_cause_that_it_changes(rows, cause, rule):
    findings = network("linear x w -> y?", "tanh y? -> z~1e-2")
    (root,) = searched(findings, estimator=Recomputed({"tanh.forward": rows}))[1]
    assert (root.cause.value, root.rule == "recompute") == (cause, rule)


@pytest.mark.parametrize("between, said", [([], True), (["exp p -> r"], False)])
def test_the_operator_right_behind_a_kernel_may_be_fused_into_it(between, said):
    """A kernel has no pass; it is known by its name alone."""
    findings = network("linear x w -> y~1e-2", *between, "golden relu y -> z")
    kernel = findings[0].pair.operator._replace(phase="")
    findings = [paired(one, target_op=kernel, golden_op=kernel) if not one.pair.order else one for one in findings]
    (root,) = searched(findings)[1]
    assert ("follower" in [one.kind for one in root.evidence]) is said


def test_the_first_reader_of_an_error_from_another_rank_names_how_it_arrived():
    search = RootSearch(network("irecv a", "wait y~1e-2", "tanh q~1e-2"))
    search.nodes[0].error_from_other_rank = True
    for node in search.nodes:
        search.visit(node)
    _, roots = search.results()
    assert [(one.pair.order, one.cause.value, one.rule) for one in roots] == [(1, "PROPAGATED", "collective")]
    assert search.carriers == {1: 0}


def test_a_gradient_is_unknown_if_a_saved_tensor_is_unreadable():
    first, *others = network("tanh@l x -> y", "tanh.backward@l g -> h~1e-2")
    findings = [first._replace(verdict=Verdict.UNREADABLE), *others]
    assert told(findings) == ["1 tanh.backward UNKNOWN output:0"]
    (root,) = searched(findings)[1]
    assert "tensors saved by the forward pass could not be compared (l.forward input:0)" in root.because


def with_paths(findings: list[Finding], **paths: str) -> list[Finding]:
    """The findings with the paths of operators by their types."""
    changed = []
    for one in findings:
        op = one.pair.operator
        if path := paths.get(op.op_type):
            op = op._replace(name=f"{path}.{op.phase}", path=path)
        changed.append(paired(one, target_op=op, golden_op=op))
    return changed


@pytest.mark.parametrize("inner, part", [("m.block.tanh", "PROPAGATED"), ("m.other.tanh", "BORN")])
def test_a_module_passes_on_the_error_of_an_operator_in_it(inner, part):
    lines = network("Tanh x -> y~1e-2", "Block x -> z~1e-2")
    assert told(with_paths(lines, Tanh=inner, Block="m.block")) == [
        "0 Tanh BORN output:0",
        f"1 Block {part} output:0",
    ]
    reasons = searched(with_paths(lines, Tanh=inner, Block="m.block"))[1][1].evidence
    contains = f"contains {inner}.forward, which has the error"
    assert ((reasons[0].kind, reasons[0].sentence()) == ("container", contains)) is (part == "PROPAGATED")


@pytest.mark.parametrize("inputs, own", [("x", "its own inputs agree; "), ("", "")])
def test_data_of_ranks_that_were_not_compared_leave_the_cause_unknown(inputs, own):
    search = RootSearch(network(f"all_reduce {inputs} -> y~1e-2"))
    search.nodes[0].remote_inputs_missing = True
    search.visit(search.nodes[0])
    (root,) = search.results()[1]
    assert (root.cause.value, root.evidence[-1].kind) == ("UNKNOWN", "unheard")
    assert root.evidence[-1].sentence().startswith(f"{own}tensors of other ranks were not compared")


@pytest.mark.parametrize("tail, some", [("", True), ("-> y", False), ("-> y~1e-2", True)])
def test_an_error_from_another_rank_passes_on_unless_the_output_agrees(tail, some):
    search = RootSearch(network(f"all_reduce x {tail}"))
    search.nodes[0].error_from_other_rank = True
    search.visit(search.nodes[0])
    assert (search.nodes[0].inherits, bool(search.nodes[0].tainted)) == (True, some)


def test_rows_have_numbers_from_the_first_on():
    findings = network("tanh x -> z~1e-2")
    assert [one.row for one in RootSearch(findings).findings] == [0, 1]
    assert [one.row for one in searched(findings, first_row=7)[0]] == [7, 8]


def test_an_output_that_both_runs_compute_within_rounding_is_explained():
    findings, roots = searched(network("tanh x~1e-7 -> z~1e-3"), estimator=Recomputed({"tanh.forward": (CLEAN, CLEAN)}))
    own = findings[-1]
    assert (own.explained_by, own.explained_limit, roots) == ("recompute", own.error, [])
    assert own.verdict is Verdict.MATCH and own.error > own.limit


@pytest.mark.parametrize("other, roots", [("", []), (" r~1e-2", ["2 Block PROPAGATED output:1"])])
def test_a_module_passes_on_no_error_to_an_output_that_was_explained_inside(other, roots):
    lines = network("linear x~3e-7 w -> y~1.5e-6", "exp p -> q~1e-2", f"Block q~1e-2 -> y~1.5e-6{other}")
    assert told(with_paths(lines, Block="m.block")) == ["1 exp BORN output:0", *roots]
