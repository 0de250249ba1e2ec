"""Dumps of a few calls, written by the tests: what a rule of activations, modes, losses or data looks at."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp import check
from npucmp.model.check_finding import Symptom
from tests.health.craft import Writer

random = np.random.default_rng(0)


class Call(NamedTuple):
    """One record; `api` without number and phase ("Functional.relu"), the same of a backward after its forward."""

    api: str
    args: Sequence[Any]
    outputs: Sequence[Any]
    kwargs: Mapping[str, Any] = MappingProxyType({})
    phase: str = "forward"


def call(name: str, args: Sequence[Any], outputs: Sequence[Any], phase: str = "forward", **kwargs: Any) -> Call:
    api = name if "." in name else f"Functional.{name}"
    return Call(api, args, outputs, kwargs, phase)


def normal(*shape: int, size: float = 1.0, at: float = 0.0) -> Any:
    return (at + size * random.normal(size=shape)).astype("float32")


def classes(count: int, kinds: int) -> Any:
    """Labels of which none are alike by chance: all classes in turn, shuffled."""
    return random.permutation(np.arange(count) % kinds).astype("int64")


def scalar(value: float, dtype: str = "float32") -> Any:
    return np.array(value, dtype)


def weight(array: Any) -> dict[str, Any]:
    return {"array": array, "trainable": True}


def linear(x: Any, out: Any, size: Optional[Any] = None) -> Call:
    w = normal(np.shape(out)[1], np.shape(x)[1]) if size is None else size
    return call("linear", [x, weight(w)], [out])


BACKWARD = call("mul", [scalar(1)], [normal(3)], "backward")  # makes a run a training


def entropy(
    logits: Any, labels: Any, value: float = 1.0, back: Optional[float] = 1.0, name: str = "cross_entropy", **more: Any
) -> list[Call]:
    """A loss, and its backward: what flows into it from behind is 1 or the loss scale."""
    found = [call(name, [logits, labels], [scalar(value)], **more)]
    if back is not None:
        found.append(call(name, [scalar(back)], [normal(*np.shape(logits))], "backward"))
    return found


def flat(parts: Sequence[Any]) -> list[Call]:
    return [one for part in parts for one in (flat(part) if isinstance(part, list) else [part])]


def write(folder: Path, steps: Sequence[Sequence[Any]], values: bool = True, ranks: bool = False) -> Path:
    """A dump of these calls, step by step, or rank by rank in one step; nested lists of calls count as one."""
    for number, parts in enumerate(steps):
        at = folder / "step0" / f"rank{number}" if ranks else folder / f"step{number}" / "rank0"
        writer, counts = Writer(at, values), Counter[str]()
        for one in flat(parts):
            key = f"{one.api}.{one.phase}"
            writer.record(f"{one.api}.{counts[key]}.{one.phase}", one.args, one.outputs, **one.kwargs)
            counts[key] += 1
        writer.write("mix")
    return folder


def symptoms(
    folder: Path, rule: str, steps: Sequence[Any], values: bool = True, ranks: bool = False, **options: Any
) -> list[Symptom]:
    """What one rule says of these calls; a list is one step, a tuple several. No other rule is asked."""
    dump = write(folder, steps if isinstance(steps, tuple) else [steps], values, ranks)
    result = check(dump, jobs=1, only=(rule,), plugins=False, **options)
    decision = next(one for one in result.decisions if one.rule == rule)
    assert not decision.failed and decision.decided != "no", decision.why_not
    return [*result.symptoms]
