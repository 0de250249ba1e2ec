"""What is known of the error of a tensor that an operator reads, and the cause and evidence that follow."""

import numpy as np

import npucmp
from tests.synthetic import chain, with_statistics, write_run

random = np.random.default_rng(11)
LINEAR = "Functional.linear.{}.forward".format
USUAL = "about 90 % of the preceding errors that no root cause explains are at most"


def first(folder, target, golden, of_figures=False):
    """Place 1 of two runs: the operator, the cause, the evidence."""
    paths = [write_run(folder / name, run) for name, run in (("t", target), ("g", golden))]
    report = npucmp.compare(*(with_statistics(one, alone=True) for one in paths) if of_figures else paths)
    root = min(report.roots, key=lambda one: one.place)
    return root.pair.operator.name, root.cause.value, root.because


def without(operators, *slots, of=None):
    """The same run, in which operators (all, or one) recorded no inputs ("in") or outputs ("out")."""
    return {name: {key: value for key, value in operator.items() if key not in slots or (of and name != of)}
            for name, operator in operators.items()}  # fmt: skip


def test_an_input_that_nothing_wrote_is_held_against_the_errors_before_it(tmp_path):
    target, golden = chain({3: 1.05}, noise=1e-7, seed=3), chain()
    target, golden = (without(run, "out", of=LINEAR(3)) for run in (target, golden))
    for run in (target, golden):
        run[LINEAR(3)] = {"in": [random.standard_normal(4)], "out": []}
    golden[LINEAR(3)] = target[LINEAR(3)]
    name, cause, because = first(tmp_path, target, golden)
    assert (name, cause) == (LINEAR(4), "GAP") and USUAL in because
