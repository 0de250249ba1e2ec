"""Where an event is born, who passes it on, who masks it, and what is no event: tables over small runs."""

import numpy as np
import pytest

from npucmp.dump.formats.msprobe import parse_msprobe_name
from npucmp.measure.kernel.range_stats import extremes_of
from npucmp.measure.range_scan import ScanResult
from npucmp.model import Extremes, Operator, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.overflows.events import events_of, headroom

INF, NAN, TOP = float("inf"), float("nan"), 65504.0
X = np.linspace(-2, 2, 16).reshape(4, 4).astype(np.float16)
UPPER = np.triu(np.ones((4, 4), bool), 1)


def at(*values):
    """X with these values at its first places."""
    changed = X.copy()
    changed.flat[: len(values)] = values
    return changed


def upper(value, below=X):
    """A causal mask: the value above the diagonal."""
    return np.where(UPPER, np.float16(value), below).astype(np.float16)


def tensor(slot, array):
    return TensorRef(slot, array.dtype.name, array.shape)


def scanned(run):
    """What a scan tells of {name: (inputs, outputs) or (inputs, outputs, more of Operator)}; scalars are arguments."""
    rows = []
    for order, (name, (reads, writes, *more)) in enumerate(run.items()):
        parts = parse_msprobe_name(name)
        slots = [(f"input:{i}", value) for i, value in enumerate(reads)]
        slots += [(f"output:{i}", value) for i, value in enumerate(writes)]
        tensors = {slot: value for slot, value in slots if isinstance(value, np.ndarray)}
        arguments = {slot: value for slot, value in slots if slot not in tensors}
        facts = dict(more[0]) if more else {}
        tensors.update(facts.pop("params", {}))
        operator = Operator(
            name, parts.op_type, parts.kind, parts.phase, order,
            tuple(tensor(slot, value) for slot, value in tensors.items()),
            arguments=arguments, call=parts.call, **facts,
        )  # fmt: skip
        for one in operator.tensors:
            value = tensors[one.slot]
            rows.append(ScanResult(operator, one, extremes_of(value.ravel(), lookup(one.dtype))))
    return rows


def found(run, flagged=None):
    """(operator's call, what, origin) of all that is an alarm; "outside" is what came in."""
    return [
        (event.operator.call or event.operator.name, event.kind, "outside" if event.outside else event.origin)
        for event in events_of(scanned(run), flagged or {})
        if event.alarm
    ]


E = "Tensor.exp.0"
BIG = {f"{E}.forward": ([at(12)], [at(INF)])}  # an Inf that is born
HOLE = {"Torch.empty.0.forward": ([4, 4], [at(NAN, 7)])}  # memory that nobody wrote


MASKS = {
    "filled": {"Tensor.masked_fill.0.forward": ([X, UPPER, -INF], [upper(-INF)])},
    "filled with less than a float": {"Tensor.masked_fill.0.forward": ([X, UPPER, -(10**400)], [upper(-INF)])},
    "filled with more than a float": {"Tensor.masked_fill.0.forward": ([X, UPPER, 10**400], [upper(INF)])},
    "filled in place, recorded afterwards": {"Tensor.masked_fill_.0.forward": ([upper(-INF), UPPER], [upper(-INF)])},
    "set in place, which writes nothing that is dumped": {
        "Tensor.__setitem__.0.forward": ([upper(-INF), UPPER, -INF], [])
    },
    "chosen": {"Torch.where.0.forward": ([UPPER, np.array(-INF, np.float16), X], [upper(-INF)])},
    "a whole tensor of it, then a triangle": {
        "Torch.full.0.forward": ([[4, 4], -TOP], [np.full((4, 4), -TOP, np.float16)]),
        "Torch.triu.0.forward": ([np.full((4, 4), -TOP, np.float16), 1], [upper(-TOP, 0)]),
    },
    "a lowest value times zeros and ones": {
        "Tensor.mul.0.forward": ([UPPER.astype(np.float16), -TOP], [upper(-TOP, 0)])
    },
    "a lowest value times ones": {
        "Tensor.mul.0.forward": ([np.ones((1, 4), np.float16), -TOP], [np.full((1, 4), -TOP, np.float16)])
    },
    "a billion in float32, cast": {
        "Tensor.to.0.forward": ([np.where(UPPER, -1e9, 0).astype(np.float32)], [upper(-INF, 0)])
    },
    "a billion in float32 among scores, cast": {
        "Tensor.to.0.forward": ([np.where(UPPER, np.float32(-1e9), X)], [upper(-INF)])
    },
    "plus infinity for a minimum": {
        "Tensor.masked_fill.0.forward": ([X, UPPER, INF], [upper(INF)]),
        "Tensor.amin.0.forward": ([upper(INF)], [X[0]]),
    },
    "log_softmax hands it on": {"Torch.log_softmax.0.forward": ([upper(-INF)], [upper(-INF, -X)])},
}  # fmt: skip
for name, value in (("infinity", -INF), ("the lowest value", -TOP), ("ten thousand", -1e4)):
    MASKS[f"minus {name} from outside, added"] = {
        "Tensor.__add__.0.forward": ([X, upper(value, 0)], [X + upper(value, 0)]),
        "Functional.softmax.0.forward": ([X + upper(value, 0)], [np.abs(X) / 4]),
    }


@pytest.mark.parametrize("run", MASKS.values(), ids=MASKS)
def test_a_mask_is_no_event(run):
    assert found(run) == []


def test_memory_that_nobody_wrote_is_blamed_where_it_is_used():
    run = {**HOLE, "Tensor.add.0.forward": ([at(NAN, 7), X], [at(NAN, 7)])}
    assert found(run) == [("Tensor.add.0", "nan", "born")]
    assert "input:0 is memory that no operator has written" in events_of(scanned(run), {})[-1].because
    assert [event.alarm for event in events_of(scanned(run), {})] == [False, True]


PROPAGATED = {
    "a NaN of Inf-Inf": ({"Tensor.sub.0.forward": ([at(INF), at(INF)], [at(NAN)])}, "nan"),
    "a part of it": ({"Tensor.__getitem__.0.forward": ([at(INF)], [at(INF)[:1]])}, "inf"),
    "what code that was not dumped made of it": ({"Tensor.mul.0.forward": ([at(INF, INF)], [at(INF, INF)])}, "inf"),
    "minus infinity that such code made of it": ({"Tensor.mul.0.forward": ([at(-INF, 1)], [at(-INF, 2)])}, "inf"),
    "a fill that leaves it": ({"Torch.masked_fill.0.forward": ([at(INF), UPPER, -INF], [upper(-INF, at(INF))])}, "inf"),
    "the gradient of an operator whose forward had it": ({f"{E}.backward": ([X], [at(NAN)])}, "nan"),
}  # fmt: skip


@pytest.mark.parametrize("run, kind", PROPAGATED.values(), ids=PROPAGATED)
def test_propagated(run, kind):
    (call,) = {parse_msprobe_name(name).call for name in run}
    assert found({**BIG, **run}) == [(E, "inf", "born"), (call, kind, "propagated")]
    assert events_of(scanned({**BIG, **run}), {})[-1].parents == (0,)


LOG = {"Torch.log.0.forward": ([at(0)], [at(-INF)])}


COUNTS = np.arange(16).reshape(4, 4)


def counts(value, dtype=np.int64):
    """Whole numbers, with this one at the first place."""
    changed = COUNTS.astype(dtype)
    changed.flat[0] = value
    return changed


def buckets(dtype=np.int64):
    """T5's position buckets: log 0, scaled, a whole number, thrown away."""
    lowest = np.iinfo(dtype).min
    low, more = counts(lowest, dtype), counts(lowest + 8, dtype)
    return {
        **LOG,
        "Tensor.__truediv__.0.forward": ([at(-INF), 2.77], [at(-INF)]),
        "Tensor.to.0.forward": ([at(-INF)], [low]),
        "Tensor.__radd__.0.forward": ([low, 8], [more]),
        "Torch.min.0.forward": ([more, counts(15, dtype)], [more]),
        "Torch.where.0.forward": ([UPPER, counts(3, dtype), more], [counts(3, dtype)]),
        "Functional.embedding.0.forward": ([counts(3, dtype), X], [X]),
    }


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("lacks", ["", "Tensor.to.0.forward"])
def test_an_infinity_that_is_thrown_away_as_a_whole_number_is_no_alarm(dtype, lacks):
    run = {name: record for name, record in buckets(dtype).items() if name != lacks}
    assert found(run) == []
    told = [(event.operator.call, event.origin, event.evidence[-1].kind) for event in events_of(scanned(run), {})]
    assert told == [("Torch.log.0", "born", "thrown away"), ("Tensor.__truediv__.0", "propagated", "thrown away")]


LOWEST = counts(np.iinfo(np.int64).min)
ALARMS_YET = {
    "chooses rows": {"Functional.embedding.1.forward": ([LOWEST, X], [X])},
    "a number again": {"Tensor.float.0.forward": ([LOWEST], [at(-6e4)])},
    "counted with": {"Torch.floor_divide.0.forward": ([LOWEST, 4], [counts(-(2**61))])},
    "read as a float": {"Functional.softmax.0.forward": ([at(-INF)], [X])},
    "of other places": {"Tensor.__sub__.0.forward": ([at(-INF)], [at(-INF, -INF)])},
}


@pytest.mark.parametrize("other", ALARMS_YET.values(), ids=ALARMS_YET)
def test_a_whole_number_of_an_infinity_that_is_used_is_an_alarm(other):
    whole = buckets()
    ends = {name: whole.pop(name) for name in ("Torch.where.0.forward", "Functional.embedding.0.forward")}
    assert found({**whole, **other, **ends})[0] == ("Torch.log.0", "inf", "born")
    assert found(whole)[0] == ("Torch.log.0", "inf", "born")


def test_a_module_is_no_second_birth():
    run = {
        "Functional.linear.0.forward": ([X], [at(INF)], {"scope": "Module.enc.fc.Linear.forward.0"}),
        "Module.enc.fc.Linear.forward.0": ([X], [at(INF)], {"scope": "Module.enc.Enc.forward.0"}),
        "Torch.mul.0.forward": ([at(INF)], [at(INF, INF)], {"scope": "Module.enc.Enc.forward.0"}),
        "Module.enc.Enc.forward.0": ([X], [at(INF, INF)]),
    }
    assert [origin for *_, origin in found(run)] == ["born", "propagated", "propagated", "propagated"]
    assert [event.parents for event in events_of(scanned(run), {})] == [(), (0,), (0,), (0,)]  # not by way of modules


def test_flags_of_the_device():
    run = {
        "Torch.add.0.forward": ([X], [X]),
        "Torch.exp.0.forward": ([X], [at(INF)]),
        "Torch.mul.0.forward": ([at(INF)], [at(INF)]),
    }
    flag = ("0x20", "AI Core: floating point overflow (0x20)")
    events = events_of(scanned(run), {0: flag, 1: flag, 2: flag})
    assert [(event.order, event.kind, event.origin) for event in events] == [
        (0, "device", "born"),
        (1, "inf", "born"),
        (1, "device", "born"),
        (2, "inf", "propagated"),
        (2, "device", "propagated"),
    ]
    assert events[0].because.endswith("the outputs do not show it: it was masked by saturation, or occurred in padding")
    assert {event.device_status for event in events} == {"0x20"}


@pytest.mark.parametrize(
    "dtype, largest, bits",
    [
        ("float16", 65504.0, 0),
        ("float16", 16376.0, 2),
        ("bfloat16", 1.0, 127.99),
        ("float32", 0.0, None),
        ("int32", 7.0, None),
    ],
)
def test_headroom(dtype, largest, bits):
    found = headroom(TensorRef("output:0", dtype, (2,)), Extremes(2, minimum=-largest, maximum=0.0))
    assert found == (bits if bits is None else pytest.approx(bits, abs=0.01))
