"""Where an event is born, who passes it on, who masks it, and what is no event: tables over small runs."""

import ml_dtypes
import numpy as np
import pytest

from npucmp.dump.formats.msprobe import parse_msprobe_name
from npucmp.measure.kernel.range_stats import extremes_of
from npucmp.measure.range_scan import ScanResult
from npucmp.model import Extremes, Operator, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.overflow_events.events import events_of
from npucmp.overflow_events.special_values import headroom, kinds_of

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

BORN = {
    "exp beyond float16": ("exp", [at(12)], [at(INF)], "inf"),
    "a product": ("matmul", [X, X], [at(-INF)], "inf"),
    "saturation": ("matmul", [X, X], [at(TOP)], "saturated"),
    "negative saturation": ("matmul", [X, X], [at(-TOP)], "saturated"),
    "of a fully connected layer, which is no full()": ("FullyConnection", [X, X], [at(-TOP)], "saturated"),
    "a sum over devices, which scatters but fills nothing": ("ReduceScatter", [X], [at(-TOP)], "saturated"),
    "in place, its input recorded afterwards": ("add_", [at(INF), X], [at(INF)], "inf"),
    "0/0": ("div", [at(0), at(0)], [at(NAN)], "nan"),
    "log of 0": ("log", [at(0)], [at(-INF)], "inf"),
    "log of a single 0": ("log", [np.zeros((), np.float32)], [np.array(-INF, np.float32)], "inf"),
    "log of zeros and ones": ("log", [UPPER.astype(np.float16)], [upper(0, np.float16(-INF))], "inf"),
    "all of it, by a plain factor": ("mul", [np.full(4, -4e4, np.float16), 3.0], [np.full(4, -INF, np.float16)], "inf"),
    "a row that is masked as a whole": ("softmax", [np.full((4, 4), -INF, np.float16)], [at(*[NAN] * 16)], "nan"),
    "a cast": ("to", [np.array([1e5, 1], np.float32)], [np.array([INF, 1], np.float16)], "inf"),
    "a complex product": ("mul", [np.ones(2, np.complex64)], [np.array([NAN, 1], np.complex64)], "nan"),
    "float64": ("exp", [np.array([1e3])], [np.array([INF])], "inf"),
    "indices do not hide it": ("gather", [X, np.zeros(3, np.int64)], [at(NAN)], "nan"),
    "mostly saturated float8": (
        "to", [X], [np.full(8, 448, ml_dtypes.float8_e4m3fn)], "saturated",
    ),
}  # fmt: skip


@pytest.mark.parametrize("op, reads, writes, kind", BORN.values(), ids=BORN)
def test_born(op, reads, writes, kind):
    assert found({f"Torch.{op}.0.forward": (reads, writes)}) == [(f"Torch.{op}.0", kind, "born")]


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


SILENT = {
    "nothing but numbers": {"Tensor.add.0.forward": ([X, X], [X])},
    "integers at their ends": {"Torch.neg.0.forward": ([np.array([-128], np.int8)], [np.array([127], np.int8)])},
    "no element": {"Torch.cat.0.forward": ([X[:0]], [X[:0]])},
    "float8 scaled to its largest value": {
        "Tensor.to.0.forward": ([X], [np.array([448, 3, -448, 1, 0, 2, 7, 9], ml_dtypes.float8_e4m3fn)])
    },
    "memory that is filled": {**HOLE, "Tensor.fill_.0.forward": ([X * 0], [X * 0])},
    "memory that is copied to, recorded before": {**HOLE, "Tensor.copy_.0.forward": ([at(NAN, 7), X], [X])},
    "views of it": {
        **HOLE,
        "Tensor.view.0.forward": ([at(NAN, 7)], [at(NAN, 7).ravel()]),
        "Tensor.__getitem__.0.forward": ([at(NAN, 7)], [at(NAN, 7)[:2]]),
        "Tensor.copy_.0.forward": ([at(NAN, 7)[:2], X[:2]], [X[:2]]),
    },
    "memory that a device hands out": {**HOLE, "Mint.EmptyLike.0.forward": ([X], [at(NAN, 7)])},
    "memory that is written in part": {**HOLE, "Tensor.__getitem__.0.forward": ([at(NAN, 1)], [X[1:]])},
    "a buffer to receive in": {"Distributed.all_gather.0.forward": ([at(NAN), X], [X])},
    "a receive that does not wait": {"Distributed.irecv.0.forward": ([X], [at(NAN)])},
    "a workspace": {"Torch.FusedBatchNormV3.0.forward": ([X], [X, X, X, at(NAN)])},
}  # fmt: skip


@pytest.mark.parametrize("run", SILENT.values(), ids=SILENT)
def test_must_not_fire(run):
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


def test_minus_infinity_that_was_born_is_no_mask_behind_a_choice():
    run = {
        "Torch.log.0.forward": ([at(0)], [at(-INF)]),
        "Torch.where.0.forward": ([UPPER, X, at(-INF)], [at(-INF)]),
        "Torch.sub.0.forward": ([at(-INF), at(-INF)], [at(NAN)]),
    }
    assert [origin for *_, origin in found(run)] == ["born", "propagated", "propagated"]


KILLED = {
    "a choice": ("where", [UPPER, at(INF), X], [X]),
    "a bound": ("clamp", [at(INF), 0, 9], [X]),
    "a maximum": ("relu", [at(INF)], [X]),
}


@pytest.mark.parametrize("op, reads, writes", KILLED.values(), ids=KILLED)
def test_killed(op, reads, writes):
    first = ("Torch.neg.0", "inf", "propagated")  # so that it does more than to be thrown away
    run = {**BIG, "Torch.neg.0.forward": ([at(INF)], [at(-INF)]), f"Torch.{op}.0.forward": (reads, writes)}
    run["Torch.add.0.forward"] = [X, X], [at(NAN)]
    assert found(run)[1:] == [first, (f"Torch.{op}.0", "inf", "killed"), ("Torch.add.0", "nan", "born")]


LOG = {"Torch.log.0.forward": ([at(0)], [at(-INF)])}
THROWN_AWAY = {"Torch.where.0.forward": ([UPPER, at(-INF), X], [X])}


def test_an_infinity_that_a_choice_throws_away_at_once_is_told_and_no_alarm():
    run = {**LOG, **THROWN_AWAY, "Torch.add.0.forward": ([X, X], [X])}
    assert found(run) == []
    told = [(event.operator.call, event.origin, event.evidence[-1].kind) for event in events_of(scanned(run), {})]
    assert told == [("Torch.log.0", "born", "thrown away"), ("Torch.where.0", "killed", "thrown away")]
    twice = {**run, "Torch.masked_fill.0.forward": ([at(-INF), UPPER, 0], [X])}
    assert found(twice) == []


REACHED = {
    "computed with first": {"Torch.mul.0.forward": ([at(-INF), 2], [at(-INF)])},
    "bounded": {"Torch.clamp.0.forward": ([at(-INF), -9, 9], [at(-9)])},
    "a sum": {"Torch.sub.0.forward": ([at(-INF), at(-INF)], [at(NAN)])},
    "its gradient": {"Torch.log.0.backward": ([X], [at(NAN)])},
}


@pytest.mark.parametrize("other", REACHED.values(), ids=REACHED)
def test_an_infinity_that_reaches_another_operator_is_an_alarm(other):
    for run in ({**LOG, **other, **THROWN_AWAY}, {**LOG, **THROWN_AWAY, **other}):
        assert found(run)[0] == ("Torch.log.0", "inf", "born")


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


def test_an_infinity_that_nobody_reads_is_an_alarm():
    assert found(LOG) == [("Torch.log.0", "inf", "born")]


def test_what_the_device_notes_or_what_is_no_infinity_is_an_alarm_all_the_same():
    assert ("Torch.log.0", "inf", "born") in found({**LOG, **THROWN_AWAY}, {0: ("1", "overflow")})
    hole = {"Torch.div.0.forward": ([X, X], [at(NAN)]), "Torch.where.0.forward": ([UPPER, at(NAN), X], [X])}
    assert found(hole)[0] == ("Torch.div.0", "nan", "born")


def test_infinity_at_the_largest_value_is_killed_and_goes_on_as_saturation():
    run = {**BIG, "Torch.nan_to_num.0.forward": ([at(INF)], [at(TOP)]), "Torch.mul.0.forward": ([at(TOP)], [at(TOP)])}
    assert found(run)[1:] == [
        ("Torch.nan_to_num.0", "saturated", "propagated"),
        ("Torch.nan_to_num.0", "inf", "killed"),
        ("Torch.mul.0", "saturated", "propagated"),
    ]


def test_asking_whether_there_is_an_infinity_kills_none():
    assert found({**BIG, "Torch.isinf.0.forward": ([at(INF)], [np.isinf(at(INF))])}) == [(E, "inf", "born")]


def test_a_zero_gradient_times_an_infinite_slope():
    """log(0), its −inf thrown away by where; the gradient of the log is 0 · Inf. The log is the place to look at."""
    run = {
        "Torch.log.0.forward": ([at(0)], [at(-INF)]),
        "Torch.where.0.forward": ([UPPER, at(-INF), X], [X]),
        "Torch.where.0.backward": ([X], [at(0)]),
        "Torch.log.0.backward": ([at(0)], [at(NAN)]),
    }
    assert found(run) == [
        ("Torch.log.0", "inf", "born"),
        ("Torch.where.0", "inf", "killed"),
        ("Torch.log.0", "nan", "propagated"),
    ]


OUTSIDE = {
    "a network input": {"Torch.linear.0.forward": ([at(NAN), X], [at(NAN)])},
    "a weight": {"Functional.linear.0.forward": ([X, at(NAN)], [at(NAN)])},
    "a parameter": {"Module.fc.Linear.forward.0": ([X], [at(NAN)], {"params": {"param:weight": at(NAN, 1)}})},
    "what other ranks sent": {"Distributed.recv.0.forward": ([X], [at(NAN)])},
    "what this rank sends": {"Distributed.all_gather.0.forward": ([X, at(NAN)], [at(NAN)])},
    "a tensor that is broadcast within a rank": {"Torch.broadcast_to.0.forward": ([at(NAN)], [at(NAN)])},
    "a sum over ranks, which cannot make a NaN of numbers": {"Distributed.all_reduce.0.forward": ([X], [at(NAN)])},
}


@pytest.mark.parametrize("run", OUTSIDE.values(), ids=OUTSIDE)
def test_what_comes_in_from_outside_is_nobodys_birth(run):
    assert found(run)[0][2] == "outside"
    assert "born" not in {origin for *_, origin in found(run)}


def test_a_parameter_is_named_also_behind_another_birth():
    run = {**BIG, "Module.fc.Linear.forward.0": ([X], [at(NAN)], {"params": {"param:weight": at(NAN, 1)}})}
    assert [origin for *_, origin in found(run)] == ["born", "outside", "propagated"]


def test_a_sum_over_ranks_may_overflow():
    assert found({"Distributed.all_reduce.0.forward": ([X], [at(INF)])}) == [
        ("Distributed.all_reduce.0", "inf", "born")
    ]


def test_a_module_is_no_second_birth():
    run = {
        "Functional.linear.0.forward": ([X], [at(INF)], {"scope": "Module.enc.fc.Linear.forward.0"}),
        "Module.enc.fc.Linear.forward.0": ([X], [at(INF)], {"scope": "Module.enc.Enc.forward.0"}),
        "Torch.mul.0.forward": ([at(INF)], [at(INF, INF)], {"scope": "Module.enc.Enc.forward.0"}),
        "Module.enc.Enc.forward.0": ([X], [at(INF, INF)]),
    }
    assert [origin for *_, origin in found(run)] == ["born", "propagated", "propagated", "propagated"]
    assert [event.parents for event in events_of(scanned(run), {})] == [(), (0,), (0,), (0,)]  # not by way of modules


def test_without_inputs_the_first_in_time_is_unknown():
    run = {f"{name}.0": ([], [at(NAN)], {"reads_recorded": False}) for name in ("Conv", "Relu")}
    assert [origin for *_, origin in found(run)] == ["unknown", "propagated"]
    events = events_of(scanned(run), {}, ordered=False)
    assert [event.origin for event in events] == ["unknown", "unknown"]


def test_an_input_that_cannot_be_read_leaves_the_origin_unknown():
    first, second, output = scanned({"Torch.add.0.forward": ([X, X], [at(NAN)])})
    events = events_of([first, second._replace(extremes=None), output], {})
    assert [event.origin for event in events] == ["unknown"]


def test_an_index_that_cannot_be_read_cannot_have_brought_it():
    x, index, output = scanned({"Torch.gather.0.forward": ([X, np.zeros(3, np.int64)], [at(NAN)])})
    assert [event.origin for event in events_of([x, index._replace(extremes=None), output], {})] == ["born"]


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


def test_a_single_float8_value_is_scaled_to_the_limit_by_nature():
    one = TensorRef("output:0", "float8_e4m3fn", (1,))
    assert kinds_of(one, Extremes(1, high=1, minimum=448, maximum=448)) == []
