"""Run a case in processes, a rank each, and record it by msprobe; note which records were made at which place."""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

STRENGTH: list[float] = []  # of an error of the next calls: empty for none
COARSE: list[str] = []  # scopes whose next calls compute in bfloat16


def _struck(made: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def call(*items: Any, **named: Any) -> torch.Tensor:
        if COARSE:
            wide = [
                one.bfloat16() if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in items
            ]
            return made(*wide, **named).to(items[0].dtype)
        out = made(*items, **named)
        if STRENGTH and isinstance(out, torch.Tensor) and out.is_floating_point():
            factors = 1 + STRENGTH[0] * np.cos(np.arange(out.numel())).reshape(out.shape)
            out = torch.ops.aten.mul.Tensor(out, torch.from_numpy(factors).to(out.dtype))  # which msprobe does not wrap
        return out

    call.__name__ = made.__name__
    return call


def patch_operators() -> None:
    """Let operators err on demand. msprobe wraps what it finds when it is imported, behind that."""
    for name in ("linear", "softmax", "gelu", "layer_norm", "silu", "rms_norm", "scaled_dot_product_attention"):
        setattr(F, name, _struck(getattr(F, name)))
    torch.Tensor.__mul__ = _struck(torch.Tensor.__mul__)  # type: ignore[method-assign]
    import msprobe.pytorch  # once, for all processes  # noqa: F401


class Recorder:
    """One rank's debugger, and the names of the records made at each place."""

    def __init__(self, folder: Path, task: str, level: str) -> None:
        from msprobe.pytorch import PrecisionDebugger

        folder.mkdir(parents=True, exist_ok=True)
        given = {"scope": [], "list": [], "data_mode": ["all"]}
        settings = {"task": task, "dump_path": str(folder), "rank": [], "step": [], "level": level,
                    "async_dump": False, "tensor": given,
                    "statistics": {**given, "summary_mode": "statistics"}}  # fmt: skip
        path = folder.parent / f"config_{os.getpid()}.json"
        path.write_text(json.dumps(settings))
        self.debugger = PrecisionDebugger(config_path=str(path))
        path.unlink()
        self.places: dict[str, list[tuple[str, str]]] = {}  # by name of a record
        self.own: dict[str, list[tuple[str, str]]] = {}  # without those that only follow a place
        self.backward: dict[str, list[tuple[str, str]]] = {}  # the same, by the records before a place without any
        self._open: list[tuple[int, tuple[str, str]]] = []  # places without a record, by the number of the next one
        self._has_modules, self._has_modules_alone = level in ("L0", "mix"), level == "L0"
        self._paths: dict[int, str] = {}  # of modules, by id
        self._inside: list[str] = []  # the modules that run
        self._places_in: dict[str, set[tuple[str, str]]] = {}  # by path of the innermost module
        self._places_before: dict[str, set[tuple[str, str]]] = {}  # by path of the next module
        self._left: set[tuple[str, str]] = set()  # places since a module began
        if self._has_modules:
            register_module_forward_pre_hook(self._enter)
            register_module_forward_hook(self._leave)

    def start(self, model: Any) -> None:
        self._paths = {id(module): path for path, module in model.named_modules()}
        self.debugger.start(model)

    def stop(self) -> None:
        self._close()
        self._open = []
        if self._has_modules:
            self._set_places_of_modules()
        self.debugger.stop()
        self.debugger.step()

    def _names(self) -> list[str]:
        return list(self.debugger.service.data_collector.data_writer.cache_data.get("data", {}))

    def _enter(self, module: Any, _: Any) -> None:
        self._inside.append(self._paths.get(id(module), ""))
        self._places_before.setdefault(self._inside[-1], set()).update(self._left)
        self._left.clear()

    def _leave(self, *_: Any) -> None:
        self._inside.pop()

    def _set_places_of_modules(self) -> None:
        """A module stands for the places inside it, for those between it and the module before, and for the backward
        pass of those of its innermost modules."""
        if self._has_modules_alone:
            self.places, self.own, self.backward = {}, {}, {}
        for name in self._names():
            if not name.startswith("Module.") or ".forward." not in name:
                continue
            path = name.split(".", 1)[1].rsplit(".", 3)[0]
            inner = [places for one, places in self._places_in.items() if one.rpartition(".")[0] == path]
            own = self._places_in.get(path, set())
            if self._has_modules_alone:
                self.places[name] = sorted(own | self._places_before.get(path, set()))
                self.backward[name] = sorted(own.union(*inner))
            else:
                self.places.setdefault(name, []).extend(sorted(own))

    def _close(self) -> None:
        """Put the first record behind a place without any into it."""
        names = self._names()
        pending = [(number, place) for number, place in self._open if number < len(names)]
        for number, place in pending:
            self.places.setdefault(names[number], []).append(place)
        self._open = [one for one in self._open if one not in pending]

    @contextmanager
    def at(self, scope: str, kind: str, strength: float = 0.0, is_coarse: bool = False) -> Iterator[None]:
        """A place; `strength` of the error of its results; is_coarse: its kernels compute in bfloat16."""
        self._close()
        if self._has_modules and self._inside:
            self._places_in.setdefault(self._inside[-1], set()).add((scope, kind))
            self._left.add((scope, kind))
        before = len(self._names())
        if strength:
            STRENGTH.append(strength)
        if is_coarse:
            COARSE.append(scope)
        try:
            yield
        finally:
            if strength:
                STRENGTH.pop()
            if is_coarse:
                COARSE.pop()
        names = self._names()
        for name in names[before:]:
            self.places.setdefault(name, []).append((scope, kind))
            self.own.setdefault(name, []).append((scope, kind))
        if len(names) == before:
            self._open.append((before, (scope, kind)))
            if names:
                self.backward.setdefault(names[-1], []).append((scope, kind))


def run_ranks(world: int, store: Path, body: Callable[[int], Optional[dict[str, Any]]]) -> dict[str, Any]:
    """Run a function in a process for each rank; return what rank 0 returned. Raises RuntimeError if one fails."""
    import torch.distributed as dist

    store.unlink(missing_ok=True)
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            code = 1
            log = os.open(f"{store}.{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            try:
                torch.set_num_threads(1)
                dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
                found = body(rank)
                if rank == 0:
                    Path(f"{store}.json").write_text(json.dumps(found or {}))
                dist.barrier()
                code = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        logs = "\n".join(Path(f"{store}.{rank}.log").read_text()[-1500:] for rank in range(world) if codes[rank])
        raise RuntimeError(f"ranks failed: {codes}\n{logs}")
    return json.loads(Path(f"{store}.json").read_text())
