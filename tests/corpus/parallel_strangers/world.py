"""A rank of a run: its place in the layout, its groups, its weights, the fault; and a run of all ranks."""

from __future__ import annotations

import fnmatch
import itertools
import json
import zlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, Sequence

import numpy as np
import torch
import torch.distributed as dist

from tests.corpus.parallel.gloo.record import Recorder, run_ranks

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


class Fault(NamedTuple):
    """What goes wrong, on which rank (None: all), and the places where one card shows it first.

    truth  patterns of places; "NAME:backward" for the gradients of what ran there, "NAME:collective" for nothing but
           the communication of the target there
    """

    kind: str = ""
    truth: tuple[str, ...] = ()
    rank: Optional[int] = None


class Layout(NamedTuple):
    """Sizes of the axes of the target, fastest first; settings of both sides; the target's faults, its own settings."""

    sizes: dict[str, int]
    both: dict[str, Any]
    faults: tuple[Fault, ...] = ()
    target: Optional[dict[str, Any]] = None

    @property
    def world(self) -> int:
        return int(np.prod([*self.sizes.values()]))


class Group(NamedTuple):
    handle: Any
    size: int
    number: int  # of this rank
    ranks: tuple[int, ...]


class Rank:
    """Facts that the modules of a network need."""

    def __init__(
        self, sizes: dict[str, int], number: int, settings: dict[str, Any], fault: Fault, recorder: Recorder, base: str
    ) -> None:
        self.sizes, self.number, self.settings, self.fault = sizes, number, settings, fault
        self.recorder, self.dtype = recorder, DTYPES[base]
        self.micro = 0  # number of the micro batch that runs, among those of all ranks
        self.groups: dict[str, Group] = {}
        every = [*itertools.product(*(range(size) for size in reversed(sizes.values())))]
        places = [dict(zip(reversed([*sizes]), place)) for place in every]
        self.own = places[number]
        for axis in sizes:
            rest = [name for name in sizes if name != axis]
            ranks_of: dict[tuple[int, ...], list[int]] = {}
            for rank, place in enumerate(places):
                ranks_of.setdefault(tuple(place[name] for name in rest), []).append(rank)
            for ranks in ranks_of.values():
                handle = dist.new_group(ranks)
                if number in ranks:
                    self.groups[axis] = Group(handle, len(ranks), ranks.index(number), tuple(ranks))

        for rank in range(len(places)):
            handle = dist.new_group([rank])
            if rank == number:
                self.alone = Group(handle, 1, 0, (rank,))

    def group(self, axis: str) -> Group:
        """The ranks along an axis; this rank alone if the layout lacks the axis."""
        return self.groups.get(axis, self.alone)

    def size(self, axis: str) -> int:
        return self.sizes.get(axis, 1)

    def hit(self, kind: str, scope: str = "") -> bool:
        """Whether the fault `kind` (with a scope: "kind@scope") strikes this rank."""
        named = f"{kind}@{scope}" if scope else kind
        return self.fault.kind == named and self.fault.rank in (None, self.number)

    def at(self, place: str) -> AbstractContextManager[None]:
        """A place: it stands for the records made in it, or for the next one if none is."""
        return self.recorder.at(place, "")

    def drawn(self, name: str, *shape: int, scale: float = 0.0, offset: float = 0.0) -> torch.Tensor:
        """A tensor of normal numbers, the same on all ranks; `scale`: 1/sqrt(inputs) if none is given."""
        draw = np.random.RandomState([zlib.crc32(name.encode()), self.settings.get("seed", 0)])
        scale = scale or (1.0 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.1)
        return torch.tensor(offset + scale * draw.randn(*shape)).to(self.dtype)

    def integers(self, name: str, most: int, *shape: int) -> torch.Tensor:
        draw = np.random.RandomState([zlib.crc32(name.encode()), self.settings.get("seed", 0)])
        return torch.tensor(draw.randint(0, most, shape))


def cut(x: torch.Tensor, dim: int, number: int, count: int) -> torch.Tensor:
    """A contiguous part of a tensor."""
    return x.chunk(count, dim)[number].clone().contiguous()


def gathered(x: torch.Tensor, group: Group, dim: int) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(group.size)]
    dist.all_gather(parts, x.contiguous(), group=group.handle)
    return torch.cat(parts, dim)


class Made(NamedTuple):
    """What a run left: figures that must not depend on the layout, and the places by name of a record."""

    figures: list[float]
    places: dict[str, list[str]]


class TrainingRun:
    """A run of training steps, whose `losses` are those of the micro batches of this rank."""

    losses: list[float]
    optimizer: Any
    step: Callable[[], None]

    def figures(self) -> list[float]:
        """The loss, the norm, and the loss behind the update."""
        first, norm = self._mean_loss(), self.optimizer.norm
        self.step()
        return [first, norm, self._mean_loss()]

    def _mean_loss(self) -> float:
        both = torch.tensor([sum(self.losses), float(len(self.losses))], dtype=torch.float64)
        dist.all_reduce(both)
        return float(both[0] / both[1])


def ran(
    network: Any, layout: Layout, fault: Fault, folder: Path, is_golden: bool, task: str, level: str, base: str
) -> Made:
    """Run a network in a process for each rank, recorded into `folder`. Raises RuntimeError if one fails."""
    sizes = dict.fromkeys(layout.sizes, 1) if is_golden else layout.sizes
    settings = layout.both if is_golden else {**layout.both, **(layout.target or {})}

    def body(number: int) -> dict[str, Any]:
        recorder = Recorder(folder, task, level)
        rank = Rank(sizes, number, settings, fault, recorder, base)
        torch.manual_seed(1)
        run = network.Run(rank)
        recorder.start(run.model)
        run.step()
        recorder.stop()
        return {"figures": run.figures(), "places": recorder.places}

    world = 1 if is_golden else layout.world
    found = run_ranks(world, folder.parent / f"{folder.name}.store", body)
    for left in folder.parent.glob(f"{folder.name}.store*"):
        left.unlink()
    places = {name: [scope for scope, _ in some] for name, some in found["places"].items()}
    return Made(found["figures"], places)


def names_at(places: dict[str, list[str]], truth: Sequence[str]) -> list[str]:
    """The records made at these places."""
    found = []
    for place in truth:
        scope, _, phase = place.partition(":")
        if phase == "collective":
            continue
        names = [name for name, some in places.items() if fnmatch.filter(some, scope)]
        if not names:
            raise RuntimeError(f"no record at {place}")
        found += [name.replace(".forward", f".{phase or 'forward'}") for name in names]
    return sorted(set(found))


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def figures_around_update(training: Any) -> list[float]:
    """The mean loss of the ranks before and behind an update, and the norm of gradients between them."""

    def mean_loss() -> float:
        both = torch.tensor([training.loss, 1.0], dtype=torch.float64)
        dist.all_reduce(both)
        return float(both[0] / both[1])

    first, norm = mean_loss(), training.norm
    training.step()
    return [first, norm, mean_loss()]
