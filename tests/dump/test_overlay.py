"""Two dumps of one run: whose operators, tensors, figures and values the joined run has."""

from __future__ import annotations

import pytest

from npucmp.dump.overlay import join
from npucmp.model import Operator, Run, Statistics, TensorRef

FIGURES = Statistics(2.0, 1.0, 1.5, 3.0)
OTHER_FIGURES = Statistics(2.0, 1.0, 1.5, 3.001)


def tensor(slot="output:0", shape=(2, 3), **more):
    return TensorRef(slot, "float32", shape, **more)


def run(*operators, path="old", **more):
    """Operators as (name, tensor, …)."""
    found = tuple(Operator(name, "x", name, "", order, rest) for order, (name, *some) in enumerate(operators)
                  for rest in [tuple(some)])  # fmt: skip
    return Run(path, "msprobe", found, **more)


def the_one(joined):
    ((tensor,),) = (operator.tensors for operator in joined.operators)
    return tensor


def test_values_join_statistics_in_either_order():
    old = run(("a", tensor(statistics=FIGURES, checksum="f00d")))
    new = run(("a", tensor(file="a.npy", encoding="npy")), path="new")
    for one, other in ((old, new), (new, old)):
        got = the_one(join(one, other))
        assert (got.file, got.encoding, got.statistics, got.checksum) == ("a.npy", "npy", FIGURES, "f00d")


def test_the_figures_of_the_first_dump_stand():
    joined = join(
        run(("a", tensor(statistics=FIGURES))), run(("a", tensor(statistics=OTHER_FIGURES, file="a.npy")), path="new")
    )
    assert the_one(joined).statistics == FIGURES
    assert "statistics of 1 of 1 tensors differ between the dumps" in joined.notes[-1]


def test_equal_figures_need_no_note():
    both = run(("a", tensor(statistics=FIGURES))), run(("a", tensor(statistics=FIGURES, file="a.npy")), path="new")
    assert join(*both).notes == ("new joins old: 1 operators are in both dumps, 1 tensors receive values",)


def test_the_larger_dump_tells_the_order():
    large = run(*[(name, tensor(name)) for name in "abcd"])
    small = run(*[(name, tensor(name)) for name in "caX"], path="new")
    for one, other in ((large, small), (small, large)):
        joined = join(one, other)
        assert "".join(operator.name for operator in joined.operators) == "aXbcd"
        assert [operator.order for operator in joined.operators] == [0, 1, 2, 3, 4]


def test_executions_of_one_name_are_counted_from_the_last():
    old = run(*[("a", tensor(label=f"old{i}")) for i in range(3)])
    new = run(*[("a", tensor(label=f"new{i}", file="x.npy")) for i in range(2)], path="new")
    assert [operator.tensors[0].label for operator in join(old, new).operators] == ["old0", "new0", "new1"]


def test_tensors_that_one_dump_lacks_are_there():
    joined = join(run(("a", tensor("output:0"))), run(("a", tensor("input:0", file="a.npy")), path="new"))
    assert [one.slot for one in joined.operators[0].tensors] == ["output:0", "input:0"]


def test_another_shape_is_another_tensor():
    joined = join(run(("a", tensor(statistics=FIGURES))), run(("a", tensor(shape=(4, 3), file="a.npy")), path="new"))
    assert the_one(joined) == tensor(statistics=FIGURES)
    assert "1 tensors differ in shape or type (a output:0)" in joined.notes[-1]


def test_values_that_cannot_be_read_are_not_passed_over():
    joined = join(
        run(("a", tensor(statistics=FIGURES))), run(("a", tensor(file="a.npy", problem="no such file")), path="new")
    )
    assert the_one(joined).problem == "no such file"


def test_values_mend_what_could_not_be_read():
    joined = join(run(("a", tensor(file="a.npy", problem="broken"))), run(("a", tensor(file="b.npy")), path="new"))
    assert (the_one(joined).file, the_one(joined).problem) == ("b.npy", "")


def test_details():
    old, new = run(detail="pytorch · L1 statistics"), run(path="new", detail="pytorch · L1 tensor")
    assert join(old, new).detail == "pytorch · L1 statistics + L1 tensor"
    assert join(join(old, new), new).detail == "pytorch · L1 statistics + L1 tensor"


NAN = float("nan")
ONE_EXECUTION = {
    "figures that one dump lacks": (FIGURES, Statistics(2.0, 1.0), {}),
    "figures that were rounded": (FIGURES, Statistics(2.0, 1.0, 1.5, 3.0004), {"rounding": 5e-4}),
    "NaN": (Statistics(NAN, NAN, NAN, NAN), Statistics(NAN, NAN, NAN, NAN), {}),
    "whole numbers": (FIGURES, Statistics(2, 1, 1.5, 3), {}),
}


@pytest.mark.parametrize("figures, others, more", ONE_EXECUTION.values(), ids=ONE_EXECUTION)
def test_figures_that_are_the_same_tell_of_no_other_execution(figures, others, more):
    old = run(("a", tensor(statistics=figures, **more)))
    for one in (others, others._replace(max=7.0)):
        joined = join(old, run(("a", tensor(statistics=one, file="a.npy")), path="new"))
        assert any("another execution" in note for note in joined.notes) == (one is not others)


@pytest.mark.parametrize("name, moved", [("empty", False), ("zeros", True)])
def test_memory_that_nobody_wrote_tells_of_no_other_execution(name, moved):
    dumps = [
        Run(path, "msprobe", (Operator(f"Torch.{name}.0.forward", name, "", "forward", 0, (tensor(statistics=one),)),))
        for path, one in (("old", FIGURES), ("new", OTHER_FIGURES))
    ]
    assert any("another execution" in note for note in join(*dumps).notes) == moved
