"""Faults that a user plants within an hour: place 1 is right, no innocent operator follows, each sentence is true."""

import numpy as np

import npucmp
from tests.synthetic import with_statistics, write_run

RANDOM = np.random.default_rng(5)
X, W, GIVEN = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((16, 12), (12, 12), (16, 12)))


def compared(folder, target, golden, statistics):
    paths = []
    for name, run in (("target", target), ("golden", golden)):
        path = write_run(folder / name, run)
        paths.append(with_statistics(path, alone=True) if statistics else path)
    return npucmp.compare(*paths)


def places(report):
    return [(one.pair.operator.name, one.cause.value) for one in report.roots if one.cause.value != "PROPAGATED"]


def call(*inputs, out, **named):
    return {"in": [*inputs], "out": [out], "kwargs": named}


def test_a_gradient_of_a_call_with_another_argument_is_no_root(tmp_path):
    def normalised(dim):
        size = np.sqrt(np.square(X).sum(dim, keepdims=True))
        out, slope = X / size, (GIVEN - X / size * (GIVEN * X / size).sum(dim, keepdims=True)) / size
        forward = {"in": [X], "out": [out], "kwargs": {"dim": dim}}
        return {
            "Functional.normalize.0.forward": forward,
            "Functional.normalize.0.backward": call(GIVEN, out=(slope * (1 + 9 * (dim == 0))).astype(np.float32)),
        }

    report = compared(tmp_path, normalised(0), normalised(1), statistics=False)
    assert places(report) == [("Functional.normalize.0.forward", "BORN")]
