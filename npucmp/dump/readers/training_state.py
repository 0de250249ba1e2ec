"""Read the state of a training in a checkpoint, beside its parameters: optimizers, schedulers, scalers and counters of
steps.

A key of a file of torch.save is a state by its name ("optimizer_state_dict", "lr_schedulers", "global_step"), and so is
a file beside the parameters (optimizer.pt, scheduler.bin). Names are the same in both: "optimizer.state.0.exp_avg".
Random states and arguments of a script are no state that two runs share; they are not read.
Sources: torch.optim and torch.amp (state_dict), Hugging Face Trainer and Accelerate, PyTorch Lightning, Megatron-LM.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Mapping, NamedTuple, Union

from npucmp.dump.readers.inert_pickle import PickledTensor, RefusedPickle, tensors_in
from npucmp.errors import DumpError
from npucmp.model import Payload, TensorRef

Number = Union[bool, int, float]
_STATE = re.compile(r"optim|sched(?!uled_)|(?<![a-z])(?:grad_?|loss_?|amp_?)?scaler|^(?:opt|amp)$", re.IGNORECASE)
_COUNTER = re.compile(r"(?:global_|current_|optimizer_)?(?:step|epoch|iteration|iter)s?(?:_count)?", re.IGNORECASE)
_FILE = re.compile(r"(?:optimizer|scheduler|lr_scheduler|scaler)(?:_[0-9]+)?\.(?:pt|pth|bin)")
_ENDING = re.compile(r"_?(?:state_dicts?|states?)$")
_SAME = {"optim": "optimizer", "opt": "optimizer", "optimizers": "optimizer", "lr_scheduler": "scheduler",
         "lr_schedulers": "scheduler", "schedulers": "scheduler", "opt_param_scheduler": "scheduler",
         "grad_scaler": "scaler", "amp_scaler": "scaler"}  # fmt: skip
_KERNELS = frozenset("foreach fused capturable differentiable verbose params param_names".split())  # how, not what
_DEEPEST, _MOST = 12, 100_000  # levels of a value, and numbers of a state: work


class TrainingState(NamedTuple):
    """The tensors and the numbers of a state by name; `heads` are the words with which its names begin."""

    tensors: dict[str, TensorRef]
    numbers: dict[str, Number]
    heads: dict[str, None]

    def add(self, other: TrainingState, prefix: str = "") -> None:
        """Add another state, with a prefix to its names."""
        self.tensors.update({prefix + name: ref for name, ref in other.tensors.items()})
        self.numbers.update({prefix + name: number for name, number in other.numbers.items()})
        self.heads.update(other.heads)


def no_state() -> TrainingState:
    """Return a state that holds nothing."""
    return TrainingState({}, {}, {})


def is_state_file(name: str) -> bool:
    """Return whether a file beside the parameters holds a state by its name."""
    return bool(_FILE.fullmatch(name))


def is_state(key: object, value: object) -> bool:
    """Return whether a key of a file is a state."""
    is_counter = isinstance(value, (int, float)) and bool(_COUNTER.fullmatch(str(key)))
    return is_counter or (isinstance(value, (dict, list, tuple)) and bool(_STATE.search(str(key))))


def state_of(
    items: Mapping[Any, Any], file: str, limits: Any, payload_of: Callable[[PickledTensor], Payload]
) -> TrainingState:
    """Return the state in items of a file. Raises RefusedPickle for values that are too deep or too large."""
    found = no_state()
    for key, value in items.items():
        head = _head(str(key))
        found.heads[head] = None
        for name, tensor in tensors_in(value, limits).items():
            own = f"{head}.{name}" if name else head
            found.tensors[own] = _ref(own, tensor, file, payload_of)
        _add_numbers(found.numbers, head, value, 0)
    return found


def _head(key: str) -> str:
    bare = _ENDING.sub("", key) or key
    return _SAME.get(bare, bare)


def _ref(name: str, tensor: PickledTensor, file: str, payload_of: Callable[[PickledTensor], Payload]) -> TensorRef:
    try:
        payload = payload_of(tensor)
    except (RefusedPickle, DumpError) as error:
        problem = getattr(error, "because", str(error))
        return TensorRef("output:0", "", (), file=file, encoding="torch_pt", problem=problem, label=name)
    return TensorRef("output:0", payload.dtype, payload.shape, file, "torch_pt", label=name, payload=payload)


def _add_numbers(numbers: dict[str, Number], name: str, value: object, depth: int) -> None:
    if isinstance(value, (bool, int, float)):
        numbers[name] = value
    elif type(value) in (dict, list, tuple) and depth < _DEEPEST and len(numbers) < _MOST:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):  # type: ignore[arg-type]
            if str(key) not in _KERNELS and not str(key).startswith("_get_lr"):
                _add_numbers(numbers, f"{name}.{key}", item, depth + 1)
