"""Sizes of a parallel layout, the groups of its ranks, and the part of a tensor that a rank holds."""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np

AXES = ("tp", "cp", "ep", "dp", "pp")  # fastest first, as Megatron numbers ranks


class Layout(NamedTuple):
    """Sizes; `micro`: micro batches of a step; sp: sequence parallel; zigzag: how cp splits the sequence; vpp: chunks
    of layers on each stage, which the batch passes in turn; ep: experts are split over ranks; exchange: those ranks
    have tokens of their own and exchange them, else all have the same and their sums are reduced."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    micro: int = 1
    sp: bool = False
    zigzag: bool = False
    ahead: bool = False  # all micro batches go forward before the first goes back, as in a pipeline
    vpp: int = 1
    zero: str = ""  # how the optimizer is split over dp, as sharded_update.py has it
    exchange: bool = False

    @property
    def ranks(self) -> int:
        return self.tp * self.cp * self.ep * self.dp * self.pp

    @property
    def data_axes(self) -> tuple[str, ...]:
        """The axes along which the batch is split."""
        return ("ep", "dp") if self.exchange else ("dp",)

    @property
    def data_parts(self) -> int:
        return self.dp * (self.ep if self.exchange else 1)

    def data_part(self, rank: int) -> int:
        """The part of the batch that a rank has."""
        own = self.at(rank, "dp")
        return own * self.ep + self.at(rank, "ep") if self.exchange else own

    @property
    def name(self) -> str:
        sizes = [f"{axis}{getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1]
        sizes += (
            [f"vpp{self.vpp}"] * (self.vpp > 1)
            + [f"micro{self.micro}"] * (self.micro > 1)
            + [self.zero] * bool(self.zero)
            + ["exchange"] * self.exchange
            + ["sp"] * self.sp
            + ["zigzag"] * self.zigzag
            + ["ahead"] * self.ahead
        )
        return "_".join(sizes) or "one"

    def at(self, rank: int, axis: str) -> int:
        """The coordinate of a rank."""
        for one in AXES:
            rank, found = divmod(rank, getattr(self, one))
            if one == axis:
                return found
        raise ValueError(axis)

    def group(self, rank: int, *axes: str) -> list[int]:
        """The ranks that differ from a rank along these axes alone, itself included."""
        fixed = [axis for axis in AXES if axis not in axes]
        return [r for r in range(self.ranks) if all(self.at(r, axis) == self.at(rank, axis) for axis in fixed)]

    def stage(self, number: int) -> list[int]:
        return [rank for rank in range(self.ranks) if self.at(rank, "pp") == number]


def positions(layout: Layout, rank: int, length: int) -> np.ndarray:
    """The places of the sequence that a rank computes under context parallelism."""
    own, count = layout.at(rank, "cp"), layout.cp
    if not layout.zigzag:
        return np.array_split(np.arange(length), count)[own]
    chunks = np.array_split(np.arange(length), 2 * count)
    return np.concatenate([chunks[own], chunks[2 * count - 1 - own]])


def part(values: np.ndarray, axis: int, number: int, count: int, blocks: Sequence[int] = ()) -> np.ndarray:
    """Part `number` of `count` along an axis: of each of the blocks of these sizes, which stay in their order."""
    cuts = np.cumsum(blocks)[:-1] if blocks else []
    found = [np.split(block, count, axis)[number] for block in np.split(values, cuts, axis)]
    return np.ascontiguousarray(np.concatenate(found, axis))
