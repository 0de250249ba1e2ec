"""Small synthetic runs. A call is (tag, api, input shapes, output shapes); the tag says which calls are the same."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from npucmp.align import Alignment
from npucmp.model import Operator, Run, Statistics, TensorRef
from npucmp.model.dump import RankGroup


class Call(NamedTuple):
    """One API call of a network."""

    tag: str
    api: str
    inputs: tuple
    outputs: tuple
    scope: str = ""
    stack: tuple = ()
    arguments: tuple = ()


class Recorded(NamedTuple):
    """A tensor of this shape, of which statistics alone were recorded."""

    statistics: Statistics
    shape: tuple
    dtype: str = "float32"


def tensors(owner: str, inputs, outputs) -> tuple[TensorRef, ...]:
    slots = [(f"input:{i}", shape) for i, shape in enumerate(inputs)]
    slots += [(f"output:{i}", shape) for i, shape in enumerate(outputs)]
    return tuple(TensorRef(slot, "float32", shape, label=f"{owner}.{slot}") for slot, shape in slots)


def api(name: str, index: int, phase: str, order: int, inputs=((2, 3),), outputs=((2, 3),), **more) -> Operator:
    full = f"{name}.{index}.{phase}"
    return Operator(
        full,
        name.rsplit(".", 1)[-1],
        f"{name}.{phase}",
        phase,
        order,
        tensors(f"{order} {full}", inputs, outputs),
        unique=False,
        call=f"{name}.{index}",
        **more,
    )


def own(name: str, order: int, inputs=((2, 3),), outputs=((2, 3),), phase="forward") -> Operator:
    """An operator whose name is its own: a module path, a graph node."""
    return Operator(
        name, name.rsplit(".", 1)[-1], name, phase, order, tensors(f"{order} {name}", inputs, outputs), call=name
    )


def a_run(operators, path="run") -> Run:
    return Run(path, "synthetic", tuple(operators))


def run_with_values(folder, calls, rank=0) -> Run:
    """A run with these calls in order: (name, inputs, outputs), or with the group of a collective, or with arguments.
    Tensors are arrays, written to files, or statistics, of four elements or in a shape."""
    folder.mkdir(exist_ok=True)
    operators = []
    for order, (name, inputs, outputs, *group) in enumerate(calls):
        refs = [_with_values(folder, f"{rank} {order}", f"input:{at}", one) for at, one in enumerate(inputs)]
        refs += [_with_values(folder, f"{rank} {order}", f"output:{at}", one) for at, one in enumerate(outputs)]
        prefix, kind, number, phase = name.split(".")
        path = kind if prefix == "Module" else ""
        more = group[0] if group else {}
        arguments = more if isinstance(more, dict) else {"group": RankGroup(more)}
        operators.append(Operator(name, kind, f"{prefix}.{kind}.{phase}", phase, order, tuple(refs),
                                  arguments=arguments, call=f"{prefix}.{kind}.{number}", path=path))  # fmt: skip
    return a_run(operators, str(folder))


def _with_values(folder, owner, slot, one) -> TensorRef:
    if isinstance(one, Statistics):
        one = Recorded(one, (4,))
    if isinstance(one, Recorded):
        return TensorRef(slot, one.dtype, one.shape, statistics=one.statistics, label=f"{owner} {slot}")
    one, file = np.asarray(one), str(folder / f"{owner} {slot}.npy")
    np.save(file, one)
    return TensorRef(slot, one.dtype.name, one.shape, file, "npy", label=f"{owner} {slot}")


def run_of(calls, path="run", first=0, renumber=None) -> tuple[Run, dict[int, str]]:
    """Forward calls in order, their backward calls in reverse; and the tag of each operator by its order.

    Calls are numbered per API from `first`; `renumber` maps a tag to an index of its own.
    """
    counts: Counter = Counter()
    operators, tags = [], {}
    numbered = []
    for call in calls:
        index = (renumber or {}).get(call.tag, first + counts[call.api])
        counts[call.api] += 1
        numbered.append((call, index))
    for phase, listed in (("forward", numbered), ("backward", numbered[::-1])):
        for call, index in listed:
            shapes = (call.inputs, call.outputs) if phase == "forward" else (call.outputs, call.inputs)
            more = {"scope": call.scope, "stack": call.stack, "arguments": dict(call.arguments)}
            tags[len(operators)] = f"{call.tag} {phase}"
            operators.append(api(call.api, index, phase, len(operators), *shapes, **more))
    return a_run(operators, path), tags


def network(layers: int = 4, scoped: bool = False) -> list[Call]:
    """Linear, norm, gelu and two multiplications per layer; all layers have the same shapes."""
    calls = []
    for n in range(layers):
        calls += [
            Call(f"{n} linear", "Functional.linear", ((4, 8), (16, 8)), ((4, 16),)),
            Call(f"{n} norm", "Functional.layer_norm", ((4, 16), (16,)), ((4, 16),)),
            Call(f"{n} scale", "Tensor.__mul__", ((4, 16),), ((4, 16),)),
            Call(f"{n} gelu", "Functional.gelu", ((4, 16),), ((4, 16),)),
            Call(f"{n} down", "Functional.linear", ((4, 16), (8, 16)), ((4, 8),)),
            Call(f"{n} gate", "Tensor.__mul__", ((4, 8), (4, 8)), ((4, 8),)),
        ]
    return [call._replace(scope=f"layers.{call.tag[0]}") for call in calls] if scoped else calls


def outcome(alignment: Alignment, target_tags, golden_tags) -> tuple[list, list, list]:
    """Tags of wrong pairs, of the target's lonely operators, of the golden's."""
    wrong = [
        (target_tags[m.target.order], golden_tags[m.golden.order])
        for m in alignment.matches
        if target_tags[m.target.order] != golden_tags[m.golden.order]
    ]
    only_target = sorted(target_tags[operator.order] for operator in alignment.only_target)
    return wrong, only_target, sorted(golden_tags[operator.order] for operator in alignment.only_golden)


def both_phases(*tags: str) -> list[str]:
    return sorted(f"{tag} {phase}" for tag in tags for phase in ("forward", "backward"))
