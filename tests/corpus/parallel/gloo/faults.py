"""Faults that the numpy corpus lacks: other kernels on one rank, experts, optimizer state and parameters in parts."""

from __future__ import annotations

from typing import Iterator, Optional

import numpy as np

from tests.corpus.parallel.cases import faults
from tests.corpus.parallel.faults import Fault, Place
from tests.corpus.parallel.gloo.styles import Style
from tests.corpus.parallel.layout import Layout
from tests.corpus.parallel.networks import Design

Planted = tuple[Fault, tuple[Place, ...], Optional[tuple[int, ...]]]
_OF_MLP = (".up", ".down", ".gelu", ".mul")


def planted(draw: np.random.RandomState, layout: Layout, d: Design, style: Style) -> Iterator[Planted]:
    """All faults that a case can have."""
    for one in faults(draw, layout, d):
        fault = one[0]
        if style.experts and (any(part in fault.scope for part in _OF_MLP) or fault.kind == "backward not reduced"):
            continue
        if style.sharded and fault.kind in ("undivided", "gradient not reduced"):
            continue
        if style.sharded == "fsdp" and fault.kind == "replica differs":
            continue
        yield one
    yield from _kernels(draw, layout, d, style)
    if style.experts:
        yield from _experts(draw, layout, d, style)
    if style.sharded == "zero":
        rank = int(draw.randint(layout.ranks))
        read: tuple[Place, ...] = (("optimizer", "shaped", "forward"), ("embedding", "embedding", "forward"))
        yield Fault("undivided", "zero"), (("optimizer", "mul", "forward"),), None
        yield Fault("shard order", "zero"), (("optimizer", "mul", "forward"),), None
        yield Fault("shard stale", "zero", rank), read, None
        yield Fault("shard not gathered", "zero", rank), read, (rank,)
    if style.sharded == "fsdp":
        at = f"layers.{int(draw.randint(d.layers))}"
        shaped: tuple[Place, ...] = ((at, "shaped", "forward"),)
        yield Fault("undivided", at), ((f"optimizer.{at}.flat", "mul", "forward"),), None
        yield Fault("shard order", at), shaped, None
        yield Fault("gather order", at), shaped, None
        rank = int(draw.randint(layout.ranks))
        yield Fault("shard stale", at, rank), shaped, (rank,)


def _kernels(draw: np.random.RandomState, layout: Layout, d: Design, style: Style) -> Iterator[Planted]:
    layer = int(draw.randint(d.layers))
    at, norm = f"layers.{layer}", "rms_norm" if d.rms else "layer_norm"
    ranks = [*range(style.apart)] if style.apart > 1 else layout.stage(layer * layout.pp // d.layers)
    rank = int(draw.choice(ranks))
    if len(ranks) > 1:
        if not style.fused_attention:
            yield Fault("coarse softmax", at, rank), ((at, "softmax", "forward"),), (rank,)
        yield Fault("other eps", f"{at}.norm2", rank), ((f"{at}.norm2", norm, "forward"),), (rank,)
        if not d.gated and not style.experts:
            yield Fault("other activation", at, rank), ((at, "gelu", "forward"),), (rank,)
    if len(ranks) > 1:
        scope, kind = [(at, "softmax"), (f"{at}.norm2", norm), (f"{at}.proj", "linear")][int(draw.randint(3))]
        yield Fault("coarse kernel", f"{scope}.{kind}", rank), ((scope, kind, "forward"),), (rank,)
    if layout.tp > 1 and not layout.sp:
        row = f"{at}.proj"
        yield Fault("coarse reduction", row), ((row, "add", "forward"), (row, "linear", "forward")), None


def _experts(draw: np.random.RandomState, layout: Layout, d: Design, style: Style) -> Iterator[Planted]:
    layer, number = int(draw.randint(d.layers)), int(draw.randint(style.experts))
    at, norm = f"layers.{layer}", "rms_norm" if d.rms else "layer_norm"
    world = max(layout.ranks, style.apart)
    own = number * world // style.experts
    linears: tuple[Place, ...] = tuple((f"{at}.experts.{k}", "linear", "forward") for k in range(style.experts))
    other = int(draw.randint(world))
    yield Fault("expert bias", f"{at}.experts.{number}"), ((f"{at}.experts.{number}", "down", "forward"),), (own,)
    yield Fault("wrong part", f"{at}.experts.{number}.gelu", own, size=0.05), (
        (f"{at}.experts.{number}", "gelu", "forward"),), (own,)  # fmt: skip
    yield Fault("expert order", at), linears, None
    yield Fault("replica differs", f"{at}.router", other, size=0.05), ((at, "router", "forward"),), (other,)
    if style.choices > 1:
        yield Fault("gates not divided", at, other), ((at, "gates", "forward"), (at, "combine", "forward")), (other,)
    if style.dispatch == "all_reduce":
        back: tuple[Place, ...] = ((f"{at}.norm2", norm, "backward"), (at, "router", "backward"))
        yield Fault("backward not reduced", at), back, None
        yield Fault("router not reduced", at), ((at, "gates", "backward"), (at, "router", "backward")), None
        yield Fault("not reduced", at), ((at, "add", "forward"),), None
    else:
        yield Fault("exchange order", at), linears, None
