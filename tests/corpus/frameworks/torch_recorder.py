"""Records a torch network: eagerly by the names of msprobe (APIs and modules), and as the aten graph."""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable, Optional

import numpy as np
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from tests.corpus.frameworks.tape import Call, Strike, Tape

UNRECORDED = {  # neither a computation nor recorded by msprobe
    "size", "dim", "__get__", "item", "numel", "contiguous", "tolist", "is_floating_point", "stride", "detach",
}  # fmt: skip


def _arrays(tensors: list[torch.Tensor]) -> list[np.ndarray]:
    return [one.detach().contiguous().numpy() for one in tensors]


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _refilled(tree: Any, tensors: list[torch.Tensor]) -> Any:
    """Return the tree with its tensors replaced in order."""
    rest = iter(tensors)
    leaves, form = _pytree.tree_flatten(tree)
    return _pytree.tree_unflatten([next(rest) if isinstance(one, torch.Tensor) else one for one in leaves], form)


def _places(args: Any, kwargs: Any) -> list[str]:
    """Return the places of the tensors: "0", "1.0" in a list, "dim" of a keyword."""
    found = []
    for key, item in (*enumerate(args), *kwargs.items()):
        if isinstance(item, torch.Tensor):
            found.append(str(key))
        elif isinstance(item, (list, tuple)):
            found += [f"{key}.{k}" for k, one in enumerate(item) if isinstance(one, torch.Tensor)]
    return found


def invoke(tape: Tape, name: str, type: str, function: Callable[..., Any], args: Any, kwargs: Any, words: Any) -> Any:
    """Run a torch function on a tape: `words` are the names of its positional arguments, where they are known."""
    held = _tensors((args, kwargs))
    plain = {str(words[k] if k < len(words) else k): one for k, one in enumerate(args)}
    plain.update(kwargs)
    numbers = {key: value for key, value in plain.items() if isinstance(value, (bool, int, float, str))}
    result: list[Any] = []

    def compute(arrays: list[np.ndarray], arguments: dict[str, Any]) -> list[np.ndarray]:
        again = [torch.from_numpy(one).to(old.dtype) for one, old in zip(arrays, held)]
        places, keywords = _refilled((args, kwargs), again)
        places = list(places)
        for key, value in arguments.items():
            k = next((k for k in range(len(places)) if str(words[k] if k < len(words) else k) == key), None)
            if k is not None:
                places[k] = value
            else:
                keywords = {**keywords, key: value}
        with torch.no_grad():
            result.append(function(*places, **keywords))
        return _arrays(_tensors(result[-1]))

    outputs = tape.run(name, type, compute, _arrays(held), numbers, _places(args, kwargs))
    return _refilled(result[-1], [torch.from_numpy(one) for one in outputs])


LAYER_NORM = ("input", "normalized_shape", "weight", "bias", "eps")
WORDS = {
    "layer_norm": LAYER_NORM,
    "batch_norm": ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
    "group_norm": ("input", "num_groups", "weight", "bias", "eps"),
}


class _Mode(TorchFunctionMode):
    """Runs every call of the torch API on a tape."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape, self.seen = tape, Counter[str]()

    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        word = getattr(function, "__name__", "")
        if word in UNRECORDED or not _tensors((args, kwargs)):
            return function(*args, **kwargs)
        if hasattr(F, word):
            space = "Functional"
        else:
            space = "Tensor" if word.startswith("__") or getattr(torch, word, None) is not function else "Torch"
        stem = f"{space}.{word}"
        place = len(self.tape.calls)
        made = invoke(self.tape, f"{stem}.{self.seen[stem]}.forward", word, function, args, kwargs, WORDS.get(word, ()))
        if not self.tape.calls[place].outputs:
            self.tape.calls.pop()
        else:
            self.seen[stem] += 1
        return made


def eager(module: torch.nn.Module, given: torch.Tensor, strike: Optional[Strike] = None) -> list[Call]:
    """Return the calls of a network run eagerly; modules are calls named `Module.…` behind their parts."""
    tape = Tape(strike)
    modules: list[tuple[int, Call]] = []
    seen: Counter[str] = Counter()

    def record(name: str) -> Any:
        def hook(one: torch.nn.Module, args: Any, output: Any) -> None:
            weights = {k: v.detach().numpy() for k, v in one.named_parameters(recurse=False)}
            call = f"Module.{name}.{type(one).__name__}.forward.{seen[name]}"
            seen[name] += 1
            found = Call(call, "Module", _arrays(_tensors(args)), _arrays(_tensors(output)))
            found.arguments = {"parameters": weights}  # type: ignore[dict-item]
            modules.append((len(tape.calls), found))

        return hook

    hooks = [one.register_forward_hook(record(name)) for name, one in module.named_modules() if name]
    try:
        with torch.no_grad(), _Mode(tape):
            module(given)
    finally:
        for one in hooks:
            one.remove()
    calls = list(tape.calls)
    for place, call in reversed(modules):
        calls.insert(place, call)
    return calls


def aten(module: torch.nn.Module, given: torch.Tensor, strike: Optional[Strike] = None) -> list[Call]:
    """Return the calls of the decomposed aten graph, run node by node; named `{node}-aten.{operator}.{overload}`."""
    program = _exported(module, given)
    tape = Tape(strike)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers()), **program.constants}
    kinds = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target is not None}
    values: dict[torch.fx.Node, Any] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            values[node] = state[kinds[node.name]].detach() if node.name in kinds else given
        elif node.op == "call_function":
            args, kwargs = (torch.fx.node.map_arg(tree, lambda one: values[one]) for tree in (node.args, node.kwargs))
            if not str(node.target).startswith("aten.") or not _tensors((args, kwargs)):
                values[node] = node.target(*args, **kwargs)
                continue
            words = [one.name for one in node.target._schema.arguments]
            kind = node.target._schema.name.partition("::")[2]
            name = f"{node.name}-{node.target}"
            values[node] = invoke(tape, name, kind, node.target, args, dict(kwargs), words)
    return tape.calls


_PROGRAMS: list[tuple[torch.nn.Module, Any]] = []  # the last exported network


def _exported(module: torch.nn.Module, given: torch.Tensor) -> Any:
    if not _PROGRAMS or _PROGRAMS[0][0] is not module:
        with torch.no_grad():
            _PROGRAMS[:] = [(module, torch.export.export(module, (given,), strict=False).run_decompositions())]
    return _PROGRAMS[0][1]
