"""One run of a network under msprobe: how it computes, what is recorded, and where the dump goes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple, Optional

import torch
from msprobe.pytorch import PrecisionDebugger
from networks import NETWORKS
from plants import Fault, Planter


class Setting(NamedTuple):
    """How a run computes.

    precision: "float32", "float64", "bfloat16" and "float16" (autocast), "bfloat16 weights" (no autocast).
    kernels: "plain" takes the ones for old processors: other orders of sums, no oneDNN.
    activations: "stored", or "recomputed" on the way back, as checkpointing does in its two ways.
    """

    precision: str = "float32"
    threads: int = 1
    kernels: str = "fast"
    attention: str = "eager"
    activations: str = "stored"


class Recording(NamedTuple):
    """What is recorded. task: "tensor", "statistics" or "md5".

    part: "all", "input", "output", "forward" or "backward".
    """

    level: str = "L1"
    task: str = "tensor"
    steps: int = 1
    part: str = "all"


class Run(NamedTuple):
    """One run; `copy` tells repeats apart."""

    network: str
    setting: Setting = Setting()
    recording: Recording = Recording()
    fault: Optional[Fault] = None
    copy: int = 0

    @property
    def folder(self) -> str:
        """Where its dump goes, relative to the output folder."""
        parts = [*self.setting, *self.recording, f"copy {self.copy}"]
        if self.fault is not None:
            fault = self.fault
            parts += [fault.kind, fault.where, fault.amount, *(f"s{step}" for step in fault.steps)]
            parts += [f"r{rank}" for rank in fault.ranks]
        words = "-".join(str(part) for part in parts).replace("torch.", "").replace(" ", "_").replace("/", "_")
        return f"runs/{self.network}/{words}"


PLAIN_KERNELS = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
}
AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}
WEIGHTS = {"float64": torch.float64, "bfloat16 weights": torch.bfloat16}


@contextlib.contextmanager
def computing(setting: Setting) -> Iterator[None]:
    """Where a setting holds. To be entered before anything is computed: libraries look at the processor once."""
    if setting.kernels == "plain":
        os.environ.update(PLAIN_KERNELS)
    torch.set_num_threads(setting.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    with torch.backends.mkldnn.flags(enabled=setting.kernels == "fast"):
        yield


def autocast(setting: Setting) -> contextlib.AbstractContextManager[Any]:
    dtype = AUTOCAST.get(setting.precision)
    return torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext()


def as_weights(setting: Setting, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch in the type that the weights have."""
    dtype = WEIGHTS.get(setting.precision)
    return {key: value.to(dtype) if dtype and value.is_floating_point() else value for key, value in values.items()}


def prepare_model(model: torch.nn.Module, setting: Setting) -> torch.nn.Module:
    """Vectors get small random parts: zero biases and scales of one would hide faults."""
    random = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=random)
    dtype = WEIGHTS.get(setting.precision)
    return (model.to(dtype) if dtype else model).train()


def debugger(recording: Recording, folder: Path, who: str = "") -> Any:
    """msprobe's PrecisionDebugger, writing into `folder`; `who` tells the ranks apart that make one each."""
    task = "tensor" if recording.task == "tensor" else "statistics"
    part = {"scope": [], "list": [], "data_mode": [recording.part]}
    config = {
        "task": task,
        "dump_path": str(folder),
        "rank": [],
        "step": [],
        "level": recording.level,
        "async_dump": False,
        "tensor": part,
        "statistics": {**part, "summary_mode": "md5" if recording.task == "md5" else "statistics"},
    }
    path = folder.with_name(f"{folder.name}.{who}.json")
    path.write_text(json.dumps(config))
    try:
        return PrecisionDebugger(config_path=str(path))
    finally:
        path.unlink()


def train(run: Run, folder: Path) -> None:
    """Steps of training in this process; AdamW moves the weights between them."""
    with computing(run.setting):
        network, setting = NETWORKS[run.network], run.setting
        model = prepare_model(network.build(setting.attention), setting)
        if setting.activations != "stored":
            model.gradient_checkpointing_enable({"use_reentrant": setting.activations == "recomputed reentrant"})
        planter = Planter(run.fault)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
        planter.prepare_optimizer(optimizer)
        probe = debugger(run.recording, folder)
        for step in range(run.recording.steps):
            planter.step = step
            batch = planter.prepare(model, as_weights(setting, network.batch(step)))
            probe.start(model)
            with autocast(setting):
                loss = model(**batch).loss
            loss.backward()
            probe.stop()
            probe.step()
            optimizer.step()
            optimizer.zero_grad()


def quietly(work: Callable[[], None], log: Path) -> str:
    """Does `work` with everything that it prints going into `log`; returns why it failed, "" if it did not."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    try:
        work()
    except Exception as error:  # the message goes to the parent, which goes on with other runs
        return f"{type(error).__name__}: {error}"
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return ""


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
