"""The faults that a mixture of experts on several ranks can have, with their truths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, Optional

import numpy as np

from tests.corpus.parallel.faults import Fault, Place
from tests.corpus.parallel.layout import Layout

if TYPE_CHECKING:
    from tests.corpus.parallel.networks import Design

Struck = tuple[Fault, tuple[Place, ...], Optional[tuple[int, ...]]]


def expert_faults(draw: np.random.RandomState, layout: Layout, d: Design) -> Iterator[Struck]:
    """The faults of one layer's experts, drawn for a layout."""
    layer, number = int(draw.randint(d.layers)), int(draw.randint(d.experts))
    at = f"layers.{layer}"
    expert = f"{at}.experts.{number}"
    stage = layout.stage(layer * layout.pp * layout.vpp // d.layers % layout.pp)
    holders = [rank for rank in stage if layout.at(rank, "ep") == number * layout.ep // d.experts]
    one, size = int(draw.choice(holders)), float(10.0 ** draw.uniform(-2.0, -0.5))
    only = (one,) if len(holders) == 1 else None
    norm = "rms_norm" if d.rms else "layer_norm"
    kind = str(draw.choice(["up.linear", "gelu", "down.linear"]))
    scope, _, name = f"{expert}.{kind}".rpartition(".")
    yield Fault("wrong part", f"{scope}.{name}", one, size=size), ((scope, name, "forward"),), (one,)
    somewhere = int(draw.choice(stage))
    attention = (f"{at}", "softmax", "forward")
    yield Fault("wrong part", f"{at}.softmax", somewhere, size=size), (attention,), (somewhere,)
    router = ((f"{at}.router", "linear", "forward"),)
    if layout.tp == 1:
        yield Fault("replica differs", f"{at}.router.weight", somewhere, size=size), router, (somewhere,)
        yield Fault("expert bias", f"{expert}.down"), ((f"{expert}.down", "linear", "forward"),), only
    first = tuple((f"{at}.experts.{k}.up", "linear", "forward") for k in range(d.experts))
    yield Fault("expert order", at), first, None
    combined: tuple[Place, ...] = ((at, "mul", "forward"), (at, "index_add", "forward"))
    yield Fault("gates missing", at), combined, None
    yield Fault("doubled", f"{expert}.up.weight"), ((f"optimizer.{expert}.up.weight", "mul", "forward"),), only
    if layout.exchange:
        for kind in ("tokens sent in another order", "tokens returned in another order"):
            yield Fault(kind, at), ((at, "cat", "forward"), *combined), None
    else:
        yield Fault("experts not reduced", at), ((at, "add", "forward"), (at, "index_add", "forward")), None
        yield (
            Fault("gates not reduced", at),
            tuple((f"{at}.router", kind, "backward") for kind in ("div", "sum", "topk")),
            None,
        )
        yield Fault("expert backward not reduced", at), ((f"{at}.norm2", norm, "backward"),), None
    if layout.data_parts > 1:
        for scope in (f"{expert}.down.weight", f"{at}.norm1.weight"):
            place = ((f"optimizer.{scope}", "mul", "forward"),)
            yield Fault("undivided", scope), place, only if scope.startswith(expert) else None
        if layout.dp > 1:
            yield Fault("gradient not reduced", scope), place, None
