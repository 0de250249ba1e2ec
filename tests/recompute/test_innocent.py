"""Calls of torch on the CPU are innocent: a replay accuses none of them. innocent.py draws more."""

import pytest

torch = pytest.importorskip("torch")

from npucmp import replay  # noqa: E402
from npucmp.model import ReplayVerdict  # noqa: E402
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
    assert {name: one for name, one in found.items() if one[0] != "replayed" or one[1] is ReplayVerdict.GUILTY} == {}


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
    assert {name: one for name, one in found.items() if one[1] is not ReplayVerdict.GUILTY} == {}


def _chosen(name, x, places, *args, values=None, **kwargs):
    outputs = [torch.tensor(places)] if values is None else [values, torch.tensor(places)]
    return Record(name, [x, *args], kwargs, outputs, [], [])


def test_indices_of_equal_values_are_free_and_others_are_not(tmp_path):
    """The recorded inputs are exact: the second nearest is wrong, be it nearer than a rounding."""
    x = torch.tensor([[1.0, 5.0, 5.0, 2.0], [4.0, 3.0, 2.0, 2.0 - 1e-7]])
    some = [
        _chosen("Torch.argmax.0", x, [1, 0], 1), _chosen("Torch.argmax.1", x, [2, 0], 1),
        _chosen("Torch.argmax.2", x, [3, 0], 1), _chosen("Torch.argmin.0", x, [0, 3], 1),
        _chosen("Torch.argmin.1", x, [0, 2], 1), _chosen("Torch.argmax.3", x, 2), _chosen("Torch.argmax.4", x, 3),
        _chosen("Torch.min.0", x, [[0], [3]], 1, True, values=x.min(1, True).values),
        _chosen("Torch.min.1", x, [[0], [2]], 1, True, values=x.min(1, True).values),
        _chosen("Torch.topk.0", x, [[2, 1], [0, 1]], 2, values=x.topk(2).values),
        _chosen("Torch.topk.1", x, [[2, 2], [0, 1]], 2, values=x.topk(2).values),
        _chosen("Torch.argsort.0", x, [[0, 3, 2, 1], [3, 2, 1, 0]], 1),
        _chosen("Torch.argsort.1", x, [[0, 3, 2, 1], [2, 3, 1, 0]], 1),
        _chosen("Torch.cummax.0", x, [[0, 1, 1, 2], [0, 0, 0, 0]], 1, values=x.cummax(1).values),
        _chosen("Torch.cummax.1", x, [[0, 2, 2, 2], [0, 0, 0, 0]], 1, values=x.cummax(1).values),
    ]  # fmt: skip
    found = _verdicts(tmp_path, some)
    wrong = {"argmax.2", "argmin.1", "argmax.4", "min.1", "topk.1", "argsort.1", "cummax.1"}
    guilty = {name for name, one in found.items() if one[1] is ReplayVerdict.GUILTY}
    assert guilty == {f"Torch.{name}.forward" for name in wrong}
    assert {name: one for name, one in found.items() if one[1] is ReplayVerdict.UNKNOWN} == {}


def test_indices_among_nan_are_unknown(tmp_path):
    x = torch.tensor([1.0, float("nan"), 5.0])
    (found,) = _verdicts(tmp_path, [_chosen("Torch.argmax.0", x, 2)]).values()
    assert found[1] is ReplayVerdict.UNKNOWN


@pytest.mark.parametrize("large", [False, True])
def test_a_bias_is_added_before_or_after_a_product_is_rounded(tmp_path, large):
    """In 16 bits; a bias that is left out is neither."""
    random = torch.Generator().manual_seed(1)
    rows = 1 << 15 if large else 64
    x, w, b = (torch.randn(*shape, generator=random).bfloat16() for shape in ((rows, 32), (16, 32), (16,)))
    product = x.double() @ w.double().T
    b = (-product.mean(0) + 8).bfloat16()
    x[:, 0] = -8
    w[:, 0] = 1  # so that a product and its bias cancel
    product = x.double() @ w.double().T
    some = []
    for at, out in enumerate((product + b, product.bfloat16().double() + b, product, product + b * 1.1)):
        some.append(Record(f"Functional.linear.{at}", [x, w, b], {}, [out.bfloat16()], [], []))
        image = x.reshape(rows // 64, 64, 32).mT.contiguous()
        made = out.bfloat16().reshape(rows // 64, 64, 16).mT.contiguous()
        some.append(Record(f"Functional.conv1d.{at}", [image, w[..., None], b], {}, [made], [], []))
    verdicts = {name: one[1] for name, one in _verdicts(tmp_path, some).items()}
    for call in ("linear", "conv1d"):
        wanted = [ReplayVerdict.CLEAN, ReplayVerdict.CLEAN, ReplayVerdict.GUILTY, ReplayVerdict.GUILTY]
        assert [verdicts[f"Functional.{call}.{at}.forward"] for at in range(4)] == wanted
