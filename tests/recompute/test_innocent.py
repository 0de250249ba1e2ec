"""Calls of torch on the CPU are innocent: a replay accuses none of them. innocent.py draws more."""

import pytest

torch = pytest.importorskip("torch")

from npucmp.model import Judged  # noqa: E402
from npucmp.workflows.replay import replay  # noqa: E402
from tests.recompute.innocent import Record, accused, write  # noqa: E402

X = torch.tensor([0.1, 0.3, -0.7, 1.1, 2.5, 7.3, 90.1, -0.1])
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _verdicts(folder, some):
    (one,) = replay(write(some, folder), jobs=1).replays
    names = {operator.order: operator.name for operator in one.run.operators}
    return {names[row.order]: (row.status, row.verdict, row.explanation) for row in one.rows}


def _record(name, args, output, kwargs=None):
    return Record(name, args, kwargs or {}, [output], [], [])


def _calls():
    """Each API of the list in each type, with a scalar that no binary type holds."""
    found = []
    for at, x in enumerate(X.to(dtype) for dtype in DTYPES):
        for name in ("ge", "gt", "le", "lt", "eq", "ne"):
            for scalar in (0.1, 0.3, 1.1, -0.7):
                output = getattr(x, name)(scalar)
                found.append(_record(f"Tensor.{name}.{len(found)}", [x, scalar], output))
                found.append(_record(f"Tensor.__{name}__.{len(found)}", [x, scalar], output))
        found.append(_record(f"Torch.round.{at}", [x], torch.round(x, decimals=1), {"decimals": 1}))
        found.append(_record(f"Functional.hardshrink.{at}", [x, 0.3], torch.nn.functional.hardshrink(x, 0.3)))
        for scalar in (0.1, 0.3, 0.7):
            found.append(_record(f"Torch.floor_divide.{len(found)}", [x, scalar], torch.floor_divide(x, scalar)))
        image = torch.arange(90.0).reshape(1, 1, 9, 10).sin().to(x.dtype)
        for factor in (1.1, 0.7, 2.3):
            for mode in ("nearest", "bilinear"):
                kwargs = {"scale_factor": factor, "mode": mode}
                output = torch.nn.functional.interpolate(image, **kwargs)
                found.append(_record(f"Functional.interpolate.{len(found)}", [image], output, kwargs))
        found.append(_record(f"Tensor.bfloat16.{at}", [x], x.bfloat16()))
    found.append(_record("Tensor.bfloat16.9", [torch.arange(8)], torch.arange(8).bfloat16()))
    wide = torch.linspace(-3, 3, 40, dtype=torch.float64).reshape(4, 10)
    found.append(
        _record("Torch.softmax.0", [wide, -1], torch.softmax(wide, -1, dtype=torch.float32), {"dtype": torch.float32})
    )
    return found


def test_no_call_with_a_python_number_is_accused(tmp_path):
    found = _verdicts(tmp_path, _calls())
    assert len(found) == len(_calls())
    assert {name: one for name, one in found.items() if one[0] != "replayed" or one[1] is Judged.GUILTY} == {}


def test_a_drawn_sample_is_innocent(tmp_path):
    guilty, rows = accused(7, 150, tmp_path)
    assert len(rows) >= 150
    assert [(name, row.slot, row.status, row.explanation) for name, row in guilty] == []


def test_wrong_results_of_the_same_calls_stay_guilty(tmp_path):
    """A comparison that is wrong away from its scalar, a quotient off by one, a value that was not shrunk."""
    some = []
    for at, x in enumerate(X.to(dtype) for dtype in DTYPES):
        one = x >= 0.1
        one[4] = ~one[4]
        some.append(_record(f"Tensor.ge.{at}", [x, 0.1], one))
        two = torch.floor_divide(x, 0.7)
        two[4] += 1
        some.append(_record(f"Torch.floor_divide.{at}", [x, 0.7], two))
        three = torch.nn.functional.hardshrink(x, 0.3)
        three[7] = x[7]
        some.append(_record(f"Functional.hardshrink.{at}", [x, 0.3], three))
        four = torch.round(x, decimals=1)
        four[4] = 2.7
        some.append(_record(f"Torch.round.{at}", [x], four, {"decimals": 1}))
        image = torch.arange(90.0).reshape(1, 1, 9, 10).sin().to(x.dtype)
        five = torch.nn.functional.interpolate(image, scale_factor=1.1, mode="bilinear") * 1.05
        some.append(_record(f"Functional.interpolate.{at}", [image], five, {"scale_factor": 1.1, "mode": "bilinear"}))
    found = _verdicts(tmp_path, some)
    assert {name: one for name, one in found.items() if one[1] is not Judged.GUILTY} == {}
