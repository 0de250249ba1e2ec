"""Judge a user's own kernel by the case of an operator that `npucmp extract` wrote: the same inputs, the same budget.

The kernel is a function that the user names: `module:function`, `file.py:function`, or an entry point of the group
`npucmp.kernels`. Nothing of the case is executed. The kernel receives the arguments of the call; for a gradient, the
incoming gradients first. Tensors are torch's if a global name of the kernel's module is a module of torch, else arrays;
types that numpy lacks are float32. It returns the results of the call, of a gradient the gradients of the inputs in
their order.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, TypeVar

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers import header
from npucmp.dump.readers.text import json_object, read_text
from npucmp.errors import DumpError, UsageError
from npucmp.model import Call, Operator, ReplayedOutput, Run, Slot, SpelledArgument, TensorRef
from npucmp.model.dump import Tree
from npucmp.model.entry_points import find_extensions, load_extension
from npucmp.recompute.arguments import RefusedRecord, arguments_of, read
from npucmp.recompute.engine import OperatorEngine
from npucmp.recompute.repro_case import CALL, as_npy
from npucmp.recompute.run import replay_tasks
from npucmp.recompute.table import row_of
from npucmp.recompute.task import ReplaySettings, Task

GROUP = "npucmp.kernels"
MOST = 1 << 20  # bytes of call.json: work
Function = Callable[..., Any]
Found = TypeVar("Found")


def replay_kernel(
    folder: Path, kernel: str, context: ReadContext, settings: ReplaySettings
) -> tuple[Run, list[ReplayedOutput]]:
    """Run a kernel on the inputs of a case, and return the run that holds its results, and a row for each.

    Raises UsageError for a kernel that does not exist or fails, DumpError for a folder that is no case.
    """
    case = _Case(folder, context)
    results = case.results_of(kernel)
    with tempfile.TemporaryDirectory(prefix="npucmp-") as scratch:
        task = case.task(results, Path(scratch))
        (rows,) = replay_tasks([task], OperatorEngine(), context.confine(scratch), settings, 1)
    operators = (task.operator,) if task.forward is None else (task.forward, task.operator)
    return Run(str(folder), "msprobe", operators, detail=f"case, computed by {kernel}"), rows


class _Case:
    def __init__(self, folder: Path, context: ReadContext) -> None:
        self._folder, self._context = folder, context
        try:
            text = read_text(folder / CALL, MOST, context)
            self._facts: dict[str, Any] = json_object(text, folder / CALL, "a case", 400)
            prefix, _, name = str(self._facts["call"]).rpartition(".")
            places = [*self._facts["tensors"]]
            self._inputs = {one: f"input:{at}" for at, one in enumerate(p for p in places if p.startswith("input_"))}
            args = tuple(map(self._tree, self._facts["args"]))
            kwargs = {str(key): self._tree(one) for key, one in self._facts["kwargs"].items()}
            self._outputs: list[dict[str, Any]] = self._facts["outputs"]
            self._saved: dict[int, str] = {int(at): str(one) for at, one in self._facts["saved"]}
            self._given: dict[int, str] = {int(at): str(one) for at, one in self._facts["given"]}
            self._is_backward = bool(self._given)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DumpError(folder, f"not a case of npucmp extract: {type(error).__name__} {error}"[:160]) from None
        number = len(self._saved) if self._is_backward else len(self._outputs)
        results = tuple(Slot(f"output:{at}") for at in range(max([number, *(at + 1 for at in self._saved)])))
        self._call = Call(prefix, name, args, kwargs, results)

    def _tree(self, tree: Any) -> Tree:
        """An argument of call.json as a record spells it."""
        if tree is None:
            return None
        if isinstance(tree, list):
            return [self._tree(one) for one in tree]
        if not isinstance(tree, dict):
            return SpelledArgument(type(tree).__name__, tree)
        ((kind, what),) = ((str(kind), what) for kind, what in tree.items())
        if kind == "tensor":
            return Slot(self._inputs[what])
        return SpelledArgument("torch.dtype" if kind == "dtype" else kind, what)

    def results_of(self, kernel: str) -> dict[int, np.ndarray[Any, Any]]:
        """The kernel's results by their place among the outputs of the case."""
        row = row_of(self._call)
        if row is None:
            raise DumpError(self._folder, f"{self._call.prefix}.{self._call.name} is not a call that npucmp can replay")
        function = _function_of(kernel)
        as_tensor = _tensor_maker(function)
        arrays = {slot: as_tensor(self._array(name), self._type(name)) for name, slot in self._inputs.items()}
        try:
            args, kwargs = arguments_of(self._call, row, arrays.__getitem__, str)
        except RefusedRecord as error:
            raise DumpError(self._folder, str(error)) from None
        given = [as_tensor(self._array(self._given[at]), self._type(self._given[at])) for at in sorted(self._given)]
        results = _asked(
            kernel, lambda: [None if one is None else _numbers(one) for one in _flat(function(*given, *args, **kwargs))]
        )
        return dict(self._by_output(results, kernel))

    def _by_output(
        self, results: Sequence[Optional[np.ndarray[Any, Any]]], kernel: str
    ) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
        for number, output in enumerate(self._outputs):
            shape = header("npy", str(self._folder / f"{output['actual']}.npy"), self._context).shape
            at = int(output["at"]) + (len(self._facts["leaves"]) if int(output["at"]) < 0 else 0)
            one = results[at] if at < len(results) else None
            if one is None or one.size != np.prod(shape, dtype=int):
                got = "nothing" if one is None else str(list(one.shape))
                raise UsageError(
                    f"--against {kernel}: result {at} is {got}; {output['slot']} of the case is {list(shape)}"
                )
            turned = one.swapaxes(-1, -2) if output["turned"] else one
            yield number, turned.reshape(shape)

    def task(self, results: Mapping[int, np.ndarray[Any, Any]], scratch: Path) -> Task:
        """The record of the case with the kernel's results."""
        name = str(self._facts["operator"])
        outputs = []
        for number, values in results.items():
            output = self._outputs[number]
            file, dtype = scratch / f"result_{number}.npy", str(output["dtype"])
            np.save(file, as_npy(values, dtype), allow_pickle=False)
            outputs.append(TensorRef(str(output["slot"]), dtype, values.shape, str(file), "npy"))
        inputs = [self._tensor(one, slot) for one, slot in self._inputs.items()]
        kind = f"{self._call.prefix}.{self._call.name}"
        if not self._is_backward:
            operator = Operator(name, self._call.name, f"{kind}.forward", "forward", 0, (*inputs, *outputs))
            return Task(operator, self._call)
        saved = [self._tensor(one, f"output:{at}") for at, one in self._saved.items()]
        forward = Operator(
            f"{self._call.name}.forward", self._call.name, f"{kind}.forward", "forward", 0, (*inputs, *saved)
        )
        given = [self._tensor(one, f"input:{at}") for at, one in self._given.items()]
        operator = Operator(name, self._call.name, f"{kind}.backward", "backward", 1, (*given, *outputs))
        slots = tuple(Slot(f"input:{at}") if at in self._given else None for at in range(max(self._given) + 1))
        back = Call(self._call.prefix, self._call.name, slots, outputs=tuple(Slot(one.slot) for one in outputs))
        return Task(operator, back, forward, self._call)

    def _type(self, name: str) -> str:
        return str(self._facts["tensors"][name])

    def _tensor(self, name: str, slot: str) -> TensorRef:
        file, dtype = str(self._folder / f"{Path(name).name}.npy"), self._type(name)
        return TensorRef(slot, dtype, header("npy", file, self._context).shape, file, "npy")

    def _array(self, name: str) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = read(self._tensor(name, name), self._context)
        return found


def _function_of(kernel: str) -> Function:
    """The function that the user names. Raises UsageError."""
    where, _, name = kernel.rpartition(":")
    if not where:
        points = find_extensions(GROUP)
        if kernel not in points:
            raise UsageError(f"--against {kernel}: name module:function, FILE.py:function or an entry point of {GROUP}",
                             [*points])  # fmt: skip
        found: Any = load_extension(points[kernel])
    else:
        found = _asked(kernel, lambda: getattr(_module_of(where), name))
    if not callable(found):
        raise UsageError(f"--against {kernel}: not a function")
    function: Function = found
    return function


def _asked(kernel: str, work: Callable[[], Found]) -> Found:
    """The result of code of the user. Raises UsageError."""
    try:
        return work()
    except Exception as error:  # the user's code raises anything
        raise UsageError(f"--against {kernel}: {type(error).__name__}: {error}"[:400]) from error


def _module_of(where: str) -> Any:
    """A module by its name, from the current folder too, or a file."""
    if not where.endswith(".py"):
        sys.path.insert(0, "")
        try:
            return importlib.import_module(where)
        finally:
            sys.path.remove("")
    spec = importlib.util.spec_from_file_location(Path(where).stem, where)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[Path(where).stem] = module
    spec.loader.exec_module(module)
    return module


def _tensor_maker(function: Function) -> Callable[[np.ndarray[Any, Any], str], Any]:
    """The function from an array and its type to a tensor of the kernel."""
    names = (one.__name__ for one in getattr(function, "__globals__", {}).values() if isinstance(one, ModuleType))
    torch = sys.modules.get("torch") if any(name.partition(".")[0] == "torch" for name in names) else None
    if torch is None:
        return lambda array, dtype: as_npy(array, dtype)
    return lambda array, dtype: torch.from_numpy(np.ascontiguousarray(as_npy(array, dtype))).to(getattr(torch, dtype))


def _flat(results: Any) -> Iterator[Any]:
    if isinstance(results, (list, tuple)):
        for one in results:
            yield from _flat(one)
    else:
        yield results


def _numbers(one: Any) -> np.ndarray[Any, Any]:
    if hasattr(one, "detach"):
        one = one.detach().cpu()
        one = (one.double() if one.is_floating_point() else one).numpy()
    found = np.asarray(one)
    return found.astype(np.float64) if found.dtype.kind in "fV" else found
