"""Faults that are planted into a running network, under msprobe's records. A new kind is one row of KINDS.

msprobe calls `ApiTemplate.forward` between its record of an operator's inputs and that of its outputs. That is where an
operator is made wrong (`inside`), so that names, call indices and arguments stay as they are, and the truth is the name
under which msprobe recorded the call. What changes between two records (`outside`) is made wrong after the second.
Values are overwritten in place, so that the autograd graph, and with it the record of the backward, stays as it is.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any, Callable, Iterator, NamedTuple, Optional

import torch
from msprobe.core.common.runtime import Runtime
from msprobe.core.dump.hook_manager import BaseHookManager
from msprobe.pytorch.dump.api_dump.api_register import ApiTemplate
from msprobe.pytorch.dump.api_dump.hook_module import HOOKModule

Call = Callable[..., Any]


class Fault(NamedTuple):
    """One planted fault.

    where: operator that it is planted in ("Functional.softmax.1.forward"); of other kinds a parameter, an attribute
        of a module, or a key of the batch.
    operator: the operator that a user has to be shown first; where it is planted, if left empty.
    steps, ranks: in which it is active; all if empty.
    """

    network: str
    kind: str
    where: str
    operator: str = ""
    amount: Any = None
    steps: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()

    @property
    def truth(self) -> str:
        backward = KINDS[self.kind].backward and not self.operator
        return self.where.replace(".forward", ".backward") if backward else self.operator or self.where


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Where msprobe does not look, so that what a fault computes is not recorded."""
    running, Runtime.is_running = Runtime.is_running, False
    try:
        yield
    finally:
        Runtime.is_running = running


def _float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _first(output: Any) -> torch.Tensor:
    return next(item for item in (output if isinstance(output, tuple) else (output,)) if _float(item))


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(12345)


def _narrowed(call: Call, args: Any, kwargs: Any, dtype: torch.dtype) -> torch.Tensor:
    """What `call` gives when its operands are of another type, in that type."""
    kwargs = {key: value for key, value in kwargs.items() if key != "dtype"}
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return _first(call(*[item.to(dtype) if _float(item) else item for item in args], **kwargs))


# Changes of a value: change(tensor, amount), in place.


def scaled(value: torch.Tensor, amount: float) -> None:
    value.mul_(amount)


def noisy(value: torch.Tensor, amount: float) -> None:
    value.mul_(1 + amount * torch.randn(value.shape, generator=_generator()).to(value.dtype))


def lost_tile(value: torch.Tensor, amount: None) -> None:
    """The last quarter of the columns in the last half of the rows is zero."""
    rows, columns = max(value.shape[-2] // 2, 1), max(value.shape[-1] // 4, 1)
    value[..., -rows:, -columns:] = 0


def nan_element(value: torch.Tensor, amount: None) -> None:
    value[(-1,) * value.dim()] = float("nan")


def swapped_columns(value: torch.Tensor, amount: None) -> None:
    value[..., :2] = value[..., :2].flip(-1)


def overwritten_row(value: torch.Tensor, amount: None) -> None:
    """The memory of the last row was used by somebody else."""
    value[-1] = value[-1].roll(1, -1) * 0.5


def one_element(value: torch.Tensor, amount: float) -> None:
    """The first element is off by `amount` times the largest."""
    value[(0,) * value.dim()] += amount * float(value.abs().max())


def wrong_number(value: torch.Tensor, amount: int) -> None:
    """One token is another one."""
    value[-1, 2] = amount


def _on_output(change: Callable[..., None]) -> Callable[..., Any]:
    """The operator writes a changed output."""

    def inside(call: Call, args: Any, kwargs: Any, fault: Fault) -> Any:
        output = call(*args, **kwargs)
        change(_first(output).data, fault.amount)
        return output

    return inside


def narrow(call: Call, args: Any, kwargs: Any, fault: Fault) -> Any:
    """The operator computes in a narrower type and casts back."""
    output = call(*args, **kwargs)
    _first(output).data.copy_(_narrowed(call, args, kwargs, fault.amount))
    return output


def other_epsilon(call: Call, args: Any, kwargs: Any, fault: Fault) -> Any:
    """A norm that takes another eps than it is told: the last of its arguments."""
    if "eps" in kwargs:
        return call(*args, **{**kwargs, "eps": fault.amount})
    return call(*(*args[:4], fault.amount), *args[5:], **kwargs)


def without_bias(call: Call, args: Any, kwargs: Any, fault: Fault) -> Any:
    output = call(*args, **kwargs)
    with torch.no_grad():
        output.data.copy_(call(args[0], args[1], torch.zeros_like(args[2]), *args[3:], **kwargs))
    return output


def nothing(call: Call, args: Any, kwargs: Any, fault: Fault) -> Any:
    """A collective that returns without having done anything."""
    return None


def _on_buffer(change: Callable[..., None]) -> Callable[..., Any]:
    """A collective leaves a changed buffer behind."""

    def inside(call: Call, args: Any, kwargs: Any, fault: Fault) -> Any:
        output = call(*args, **kwargs)
        change(args[0].data, fault.amount)
        return output

    return inside


def narrow_buffer(call: Call, args: Any, kwargs: Any, fault: Fault) -> Any:
    """A collective that sends a narrower type than it is given."""
    args[0].data.copy_(args[0].to(fault.amount).to(args[0].dtype))
    return call(*args, **kwargs)


def _on_written_gradient(change: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """The operator's backward writes a wrong gradient: this hook runs before the one that records."""

    def inside(call: Call, args: Any, kwargs: Any, fault: Fault) -> Any:
        output = call(*args, **kwargs)

        def hook(written: Any, read: Any) -> Any:
            with unrecorded():
                return tuple(change(item, fault.amount) if _float(item) else item for item in written)

        _first(output).grad_fn.register_hook(hook)
        return output

    return inside


def _on_read_gradient(output: Any, fault: Fault) -> None:
    """What the backward of the operator reads is not what the backwards of its readers have written."""

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        with unrecorded():
            return gradient * fault.amount

    _first(output).register_hook(hook)


def _on_stored(change: Callable[..., None]) -> Callable[..., None]:
    """The output changes after it was written."""

    def outside(output: Any, fault: Fault) -> None:
        change(_first(output).data, fault.amount)

    return outside


def _on_parameter(change: Callable[..., None]) -> Callable[..., None]:
    def prepare(model: torch.nn.Module, batch: Any, fault: Fault) -> None:
        change(model.get_parameter(fault.where).data, fault.amount)

    return prepare


def _on_batch(change: Callable[..., None]) -> Callable[..., None]:
    def prepare(model: torch.nn.Module, batch: Any, fault: Fault) -> None:
        change(batch[fault.where], fault.amount)

    return prepare


def attribute(model: torch.nn.Module, batch: Any, fault: Fault) -> None:
    path, name = fault.where.rsplit(".", 1)
    setattr(model.get_submodule(path), name, fault.amount)


def other_gelu(model: torch.nn.Module, batch: Any, fault: Fault) -> None:
    """Of a function that a module took hold of before msprobe wrapped it, so that no record shows it."""
    module = model.get_submodule(fault.where)
    module.act = functools.partial(module.act, approximate="tanh")


class Kind(NamedTuple):
    """How a kind of fault is planted, and which causes are right.

    inside(call, args, kwargs, fault): in place of the operator. outside(output, fault): after it was recorded.
    prepare(model, batch, fault): before each forward, `batch` is a copy. optimizer(optimizer, fault): at the start.
    backward: it shows at the backward of the operator. script: the training script looks for it itself.
    """

    causes: tuple[str, ...]
    inside: Optional[Callable[..., Any]] = None
    outside: Optional[Callable[..., None]] = None
    prepare: Optional[Callable[..., None]] = None
    optimizer: Optional[Callable[..., None]] = None
    backward: bool = False
    script: bool = False
    once: bool = False  # prepared in the first step only: what it changes stays


def decays_twice(optimizer: torch.optim.Optimizer, fault: Fault) -> None:
    def decay_once_more(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(1 - group["lr"] * group["weight_decay"])

    optimizer.register_step_pre_hook(decay_once_more)


def forgets_parameter(optimizer: torch.optim.Optimizer, fault: Fault) -> None:
    """One parameter is not among those that are updated: the fault.amount-th."""
    del optimizer.param_groups[0]["params"][fault.amount]


def other_rate(optimizer: torch.optim.Optimizer, fault: Fault) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= fault.amount


BORN, GAP = ("BORN",), ("GAP",)

KINDS = {
    "scaled": Kind(BORN, inside=_on_output(scaled)),
    "noise": Kind(BORN, inside=_on_output(noisy)),
    "lost tile": Kind(BORN, inside=_on_output(lost_tile)),
    "nan": Kind(BORN, inside=_on_output(nan_element)),
    "swapped columns": Kind(BORN, inside=_on_output(swapped_columns)),
    "one element": Kind(BORN, inside=_on_output(one_element)),
    "narrow": Kind(BORN, inside=narrow),
    "epsilon": Kind(BORN, inside=other_epsilon),
    "dropped bias": Kind(BORN, inside=without_bias),
    "attribute": Kind(BORN, prepare=attribute),
    "uncaptured gelu": Kind(GAP, prepare=other_gelu, once=True),
    "overwritten": Kind(GAP, outside=_on_stored(overwritten_row)),
    "weight": Kind(GAP, prepare=_on_parameter(scaled), once=True),
    "weight element": Kind(GAP, prepare=_on_parameter(one_element), once=True),
    "input": Kind(GAP, prepare=_on_batch(scaled)),
    "token": Kind(GAP, prepare=_on_batch(wrong_number)),
    "gradient": Kind(BORN, inside=_on_written_gradient(lambda item, amount: item * amount), backward=True),
    "narrow gradient": Kind(
        BORN, inside=_on_written_gradient(lambda item, amount: item.to(amount).to(item.dtype)), backward=True
    ),
    "incoming gradient": Kind(GAP, outside=_on_read_gradient, backward=True),
    "decay twice": Kind(GAP, optimizer=decays_twice),
    "forgotten parameter": Kind(GAP, optimizer=forgets_parameter),
    "learning rate": Kind(GAP, optimizer=other_rate),
    "idle collective": Kind(BORN, inside=nothing),
    "narrow collective": Kind(BORN, inside=narrow_buffer),
    "scaled collective": Kind(BORN, inside=_on_buffer(scaled)),
    "damaged receive": Kind(("BORN", "GAP", "UNKNOWN"), inside=_on_buffer(overwritten_row)),
    "missing collective": Kind(GAP, script=True),
}


class Planter:
    """Plants one fault, or none, into this process."""

    def __init__(self, fault: Optional[Fault], rank: Optional[int] = None) -> None:
        self.fault = fault
        self.kind = KINDS[fault.kind] if fault is not None else Kind(())
        self.here = fault is not None and (rank is None or not fault.ranks or rank in fault.ranks)
        self.step = 0
        if self.here and (self.kind.inside or self.kind.outside):
            self._patch()

    @property
    def active(self) -> bool:
        return self.here and self.fault is not None and (not self.fault.steps or self.step in self.fault.steps)

    @property
    def missing_collective(self) -> str:
        """Which collective the script leaves out, "" if none."""
        return self.fault.where if self.active and self.kind.script and self.fault is not None else ""

    def prepare(self, model: torch.nn.Module, batch: Any) -> Any:
        """The batch of this step; called before its forward."""
        with unrecorded():
            batch = {key: value.clone() for key, value in batch.items()}
            if self.active and self.kind.prepare and not (self.kind.once and self.step):
                self.kind.prepare(model, batch, self.fault)
        return batch

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if self.here and self.kind.optimizer:
            self.kind.optimizer(optimizer, self.fault)

    def _hit(self, api: Any) -> bool:
        """Whether this call is the planted one, and not one that runs inside another or inside msprobe."""
        thread = threading.get_ident()
        return (
            self.active
            and Runtime.is_running
            and not BaseHookManager.inner_switch[thread]
            and getattr(api, "full_forward_name", "") == self.fault.where  # type: ignore[union-attr]
        )

    def _patch(self) -> None:
        forward, kind, fault = ApiTemplate.forward, self.kind, self.fault

        def planted_forward(api: Any, *args: Any, **kwargs: Any) -> Any:
            if kind.inside and self._hit(api) and BaseHookManager.inner_api_count[threading.get_ident()] == 1:
                return kind.inside(lambda *a, **k: forward(api, *a, **k), args, kwargs, fault)
            return forward(api, *args, **kwargs)

        def planted_call(api: Any, *args: Any, **kwargs: Any) -> Any:
            outermost = BaseHookManager.inner_api_count[threading.get_ident()] == 0
            if outermost:
                api.full_forward_name = ""  # of an earlier call; msprobe sets it if it records this one
            output = HOOKModule.__call__(api, *args, **kwargs)
            if kind.outside and outermost and self._hit(api):
                with unrecorded():
                    kind.outside(output, fault)
            return output

        ApiTemplate.forward = planted_forward
        ApiTemplate.__call__ = planted_call
