"""A rank of a case: its layout, groups, weights, the fault; and the regions of tensor parallelism."""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from tests.corpus.networks import Weights
from tests.corpus.parallel.faults import Fault
from tests.corpus.parallel.gloo import regions
from tests.corpus.parallel.gloo.record import Recorder
from tests.corpus.parallel.gloo.styles import Style
from tests.corpus.parallel.layout import Layout, part
from tests.corpus.parallel.networks import Design


class Place:
    """The facts of its rank that a module needs.

    whole    paths of parameters that all tensor ranks hold whole
    experts  paths of parameters that one rank of the experts' group holds
    """

    def __init__(
        self, layout: Layout, rank: int, design: Design, style: Style, seed: int, fault: Fault, dtype: torch.dtype,
        recorder: Recorder,
    ) -> None:  # fmt: skip
        self.layout, self.rank, self.design, self.style, self.fault = layout, rank, design, style, fault
        self.weights, self.dtype, self.recorder = Weights(seed), dtype, recorder
        self.groups: dict[tuple[str, ...], regions.Group] = {}
        self.whole: set[str] = set()
        self.experts: set[str] = set()
        self.step = 0

    def make_groups(self) -> None:
        """All ranks make all groups, in one order."""
        layout, world = self.layout, self.layout.ranks
        stride = world // layout.pp
        for axes in (("tp",), ("cp",), ("dp",), ("cp", "dp"), ("pp",)):
            self._make(axes, sorted({tuple(layout.group(rank, *axes)) for rank in range(world)}))
        if layout.pp > 1:
            self._make(("ends",), [(first, first + world - stride) for first in range(stride)])
        if layout.tp == 4:
            self._make(("pair",), [(0, 1), (2, 3)])
        if self.style.apart > 1:
            self._make(("ep",), [tuple(range(self.style.apart))])
        elif self.style.experts and world > 1:
            self.groups["ep",] = self.groups["tp" if self.style.dispatch == "all_reduce" else "dp",]

    def _make(self, name: tuple[str, ...], groups: Sequence[tuple[int, ...]]) -> None:
        for ranks in groups:
            handle = dist.new_group([*ranks])
            if self.rank in ranks:
                style = self.style
                self.groups[name] = regions.Group(
                    handle, len(ranks), ranks.index(self.rank), style.into_tensor, style.in_place
                )

    def owned_experts(self) -> range:
        """The numbers of the experts of this rank."""
        group, count = self.groups.get(("ep",)), self.style.experts
        size, own = (group.size, group.number) if group is not None else (1, 0)
        return range(own * count // size, (own + 1) * count // size)

    def own(self, axis: str) -> int:
        return self.layout.at(self.rank, axis)

    def struck(self, kind: str, scope: str) -> bool:
        return self.fault.strikes(kind, scope, self.rank, self.step)

    def at(self, scope: str, kind: str) -> Any:
        wrong = self.struck("wrong part", f"{scope}.{kind}")
        is_coarse = self.struck("coarse kernel", f"{scope}.{kind}")
        return self.recorder.at(scope, kind, self.fault.size if wrong else 0.0, is_coarse)

    def parameter(
        self, path: str, shape: Sequence[int], axis: Optional[int] = None, blocks: Sequence[int] = (),
        offset: float = 0.0, scale: float = 0.0,
    ) -> nn.Parameter:  # fmt: skip
        """A parameter; `axis`: along which tensor ranks split it, in these blocks."""
        scale = scale or (1.0 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.1)
        values = self.weights.get(path, tuple(shape), scale, offset)
        if axis is None:
            self.whole.add(path)
        else:
            number = self.own("tp")
            if self.fault.strikes("shard order", path, None, 0):
                number = (number + 1) % self.layout.tp
            if self.fault.strikes("blocks ignored", path.rpartition(".")[0], None, 0):
                blocks = ()
            values = part(values, axis, number, self.layout.tp, blocks)
        if self.fault.strikes("replica differs", path, self.rank, 0):
            signs = np.sign(np.cos(np.arange(values.size))).reshape(values.shape)
            values = values + self.fault.size * np.abs(values).mean() * signs
        return nn.Parameter(torch.tensor(values).to(self.dtype))

    def wide(self, x: torch.Tensor) -> torch.Tensor:
        """At least float32."""
        return x if self.dtype == torch.float64 else x.float()

    # Regions of tensor parallelism

    def enter(self, x: torch.Tensor, scope: str) -> torch.Tensor:
        """From what all tensor ranks hold (sp: a part of the sequence each) to what column-parallel layers read."""
        if self.layout.tp == 1:
            return x
        is_reduced = not self.struck("backward not reduced", scope)
        if self.layout.sp:
            order = [*range(1, self.layout.tp), 0] if self.struck("gather order", scope) else None
            return regions.GatherSequence.apply(x, self.groups["tp",], self.style.sequence, order, is_reduced)
        return regions.Copy.apply(x, self.groups["tp",], is_reduced)

    def leave(self, x: torch.Tensor, scope: str) -> torch.Tensor:
        """From partial sums to what all tensor ranks hold."""
        if self.layout.tp == 1:
            return x
        group, dim = self.groups["tp",], self.style.sequence
        if self.struck("wrong group", scope):
            axes = ("dp",) if self.layout.dp > 1 else ("cp",) if self.layout.cp > 1 else ("pair",)
            group = self.groups[axes]
        if self.layout.sp:
            return regions.ScatterSums.apply(x, group, dim)
        if self.struck("coarse reduction", scope):
            return regions.Reduce.apply(x.to(torch.bfloat16), group).to(x.dtype)
        return x if self.struck("not reduced", scope) else regions.Reduce.apply(x, group)
