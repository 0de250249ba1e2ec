"""Findings of one step, made of figures alone: the measured moments of each tensor, without its values."""

from __future__ import annotations

import math
from typing import NamedTuple

from npucmp.model import Finding, Measurement, Moments, Operator, Pair, Side, TensorRef, Verdict


class Tensor(NamedTuple):
    """A tensor of `shape` whose golden values have the root mean square `rms`; the target's are off by `error`."""

    slot: str
    shape: tuple = (8, 8)
    error: float = 0.0
    rms: float = 1.0
    low: float = -2.0
    high: float = 2.0
    total: float = 0.0
    gain: float = 0.0
    mean_abs: float = 0.0
    content: int = 0
    target_content: int = 0
    dtypes: tuple = ("float32", "float32")
    bits: tuple = (24, 24)
    max_rel: float = 1.0
    mismatched: int = 0
    nan: int = 0
    statistics: tuple = ()  # of the target and the golden, in place of values
    verdict: Verdict = Verdict.DIVERGED
    equal: int = 0
    checksum: str = ""  # of the target

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def moments(self) -> Moments:
        yy = self.elements * self.rms**2
        target, golden = (
            Side(self.nan, minimum=self.low, maximum=self.high, total=self.total, squares=yy, bits=bits, hash=content)
            for bits, content in zip(self.bits, (self.target_content or self.content, self.content))
        )
        error = self.error if math.isfinite(self.error) else 1.0
        return Moments(self.elements, target, golden, self.elements - self.mismatched, mismatched=self.mismatched,
                       equal=self.equal,
                       xx=yy, yy=yy, xy=(1 + self.gain) * yy, sum_abs=self.mean_abs * self.elements,
                       sum_dd=error**2 * yy, max_abs=error * self.rms, max_rel=self.max_rel)  # fmt: skip


class Op(NamedTuple):
    """An operator of both runs with its tensors."""

    kind: str
    tensors: tuple
    call: str = ""
    phase: str = "forward"
    arguments: tuple = ({}, {})  # of the target and the golden


def step(*operators: Op) -> list[Finding]:
    """The findings of operators in their order; an operator without a call has one of its own."""
    found: list[Finding] = []
    for order, one in enumerate(operators):
        call = one.call or f"{one.kind}.{order}"
        refs = [[TensorRef(tensor.slot, tensor.dtypes[side], tensor.shape,
                           checksum="" if side else tensor.checksum,
                           statistics=tensor.statistics[side] if tensor.statistics else None)
                 for tensor in one.tensors] for side in (0, 1)]  # fmt: skip
        name = f"{call}.{one.phase}"
        sides = [
            Operator(name, one.kind, one.kind, one.phase, order, tuple(own), call=call, arguments=arguments)
            for own, arguments in zip(refs, one.arguments)
        ]
        for tensor, target, golden in zip(one.tensors, *refs):
            pair = Pair(order, tensor.slot, *sides, target, golden, "name", 1.0)
            measured = Measurement(pair, None, bound=tensor.error) if tensor.statistics else None
            error = math.nan if tensor.statistics else tensor.error
            verdict = tensor.verdict if tensor.error else Verdict.MATCH
            finding = Finding(measured or Measurement(pair, tensor.moments), verdict, "", error, row=len(found))
            found.append(finding)
    return found


def layer(number: int, *parameters: Tensor, read: float = 0.0, gradients: tuple = ()) -> list[Op]:
    """A linear layer with its parameters, and its backward with these (shape, error) of gradients; the input is off by
    `read`."""
    call = f"linear.{number}"
    named = tuple(one._replace(slot=f"input:{at}") for at, one in enumerate(parameters, 1))
    forward = Op("linear", (Tensor("input:0", (2, 8), read), *named, Tensor("output:0", (2, 8))), call)
    if not gradients:
        return [forward]
    outputs = tuple(Tensor(f"output:{at}", shape, error) for at, (shape, error) in enumerate(gradients))
    return [forward, Op("linear", (Tensor("input:0", (2, 8)), *outputs), call, "backward")]
