"""Pairs drawn from seeds: a layout, a network, a precision, a fault or none; the dumps of both, and the truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Iterator, NamedTuple, Optional

import numpy as np

from tests.corpus.device import Device
from tests.corpus.networks import Weights
from tests.corpus.parallel.expert_faults import expert_faults
from tests.corpus.parallel.faults import Fault, Place
from tests.corpus.parallel.layout import Layout
from tests.corpus.parallel.networks import Design, Network
from tests.corpus.tape import Precision, Session
from tests.corpus.trace import Record, Run
from tests.corpus.writers.msprobe import Style, names, write

LAYOUTS = {
    "tp2": Layout(tp=2), "tp4": Layout(tp=4), "tp2_sp": Layout(tp=2, sp=True), "tp4_sp": Layout(tp=4, sp=True),
    "dp2": Layout(dp=2), "dp4": Layout(dp=4), "micro2": Layout(dp=1, micro=2), "dp2_micro2": Layout(dp=2, micro=2),
    "pp2": Layout(pp=2), "pp2_micro2": Layout(pp=2, micro=2), "cp2": Layout(cp=2),
    "pp2_micro2_ahead": Layout(pp=2, micro=2, ahead=True),
    "tp2_pp2_micro2_ahead": Layout(tp=2, pp=2, micro=2, ahead=True),
    "cp2_zigzag": Layout(cp=2, zigzag=True),
    "cp4_zigzag": Layout(cp=4, zigzag=True), "tp2_dp2": Layout(tp=2, dp=2), "tp2_pp2": Layout(tp=2, pp=2),
    "tp2_cp2": Layout(tp=2, cp=2), "tp2_sp_cp2_zigzag": Layout(tp=2, cp=2, sp=True, zigzag=True),
    "pp2_vpp2": Layout(pp=2, vpp=2), "pp2_vpp2_micro2": Layout(pp=2, vpp=2, micro=2),
    "pp2_vpp2_micro2_ahead": Layout(pp=2, vpp=2, micro=2, ahead=True), "tp2_pp2_vpp2": Layout(tp=2, pp=2, vpp=2),
    "dp2_zero1": Layout(dp=2, zero="zero1"), "dp4_zero1": Layout(dp=4, zero="zero1"),
    "tp2_dp2_zero1": Layout(tp=2, dp=2, zero="zero1"), "dp2_fsdp": Layout(dp=2, zero="fsdp"),
    "dp2_zero1_backward": Layout(dp=2, zero="zero1_backward"), "dp2_zero1_each": Layout(dp=2, zero="zero1_each"),
    "dp2_fsdp_flat": Layout(dp=2, zero="fsdp_flat"), "tp2_dp2_fsdp_flat": Layout(tp=2, dp=2, zero="fsdp_flat"),
    "dp4_fsdp": Layout(dp=4, zero="fsdp"), "tp2_dp2_fsdp": Layout(tp=2, dp=2, zero="fsdp"),
    "ep2": Layout(ep=2), "ep4": Layout(ep=4), "ep2_exchange": Layout(ep=2, exchange=True),
    "ep4_exchange": Layout(ep=4, exchange=True), "tp2_ep2": Layout(tp=2, ep=2), "ep2_pp2": Layout(ep=2, pp=2),
    "ep2_dp2": Layout(ep=2, dp=2), "tp2_ep2_exchange": Layout(tp=2, ep=2, exchange=True),
    "ep2_pp2_exchange": Layout(ep=2, pp=2, exchange=True), "ep2_dp2_exchange": Layout(ep=2, dp=2, exchange=True),
    "tp2_sp_dp2": Layout(tp=2, dp=2, sp=True), "pp2_dp2": Layout(pp=2, dp=2), "tp2_dp2_pp2": Layout(tp=2, dp=2, pp=2),
}  # fmt: skip
OPEN = (
    "tp2",
    "tp4",
    "tp2_sp",
    "dp2",
    "micro2",
    "pp2",
    "cp2",
    "cp2_zigzag",
    "tp2_dp2",
    "tp2_sp_dp2",
    "pp2_dp2",
    "tp2_pp2",
)


class Case(NamedTuple):
    """One pair. `style`: "values" or "statistics"; level "L1" or "mix"; `golden`: the layout of the golden."""

    name: str
    layout: Layout
    design: Design
    fault: Fault
    truth: tuple[Place, ...] = ()
    ranks: Optional[tuple[int, ...]] = None
    style: str = "values"
    level: str = "L1"
    base: str = "float32"
    seed: int = 0
    golden: Layout = Layout()


class Written(NamedTuple):
    """The folders of both dumps, and the golden's operators that are right to name."""

    target: Path
    golden: Path
    right: frozenset[str]


def run(case: Case, layout: Layout, fault: Fault, device: Device) -> list[Run]:
    session = Session(device, Precision(case.base), {}, 0, layout.ranks, "full", modules=case.level == "mix")
    network = Network(session, layout, case.design, Weights(case.seed), case.seed, fault)
    network.step()
    return session.runs()


def make(case: Case, folder: Path) -> Written:
    """Writes both dumps."""
    draw = np.random.RandomState([case.seed, 5])
    golden_device = Device(int(draw.choice([32, 64, 128])), int(draw.randint(3)))
    slope = float(draw.choice([0.0, 0.0, 1.0]))
    target_device = Device(int(draw.choice([16, 32, 64])), int(draw.randint(3)), slope, seed=case.seed + 1)
    golden = run(case, case.golden, Fault(), golden_device)
    target = run(case, case.layout, case.fault, target_device)
    style = Style("tensor" if case.style == "values" else "statistics", case.level)
    write(folder / "golden", golden, style)
    write(folder / "target", target, style)
    right = {
        name
        for one in golden
        for record, name in names(one, style).items()
        if any(_is_place(record, place) for place in case.truth)
    }
    return Written(folder / "target", folder / "golden", frozenset(right))


def _is_place(record: Record, place: Place) -> bool:
    """Whether a record is of a place: of its scope, of the optimizer's any."""
    scope, kind, phase = place
    inside = record.scope == scope or (scope == "optimizer" and record.scope.startswith("optimizer."))
    return inside and (record.kind, record.phase) == (kind, phase)


def design_for(draw: np.random.RandomState, layout: Layout) -> Design:
    """A network that the layout can split."""
    heads = int(draw.choice([4, 8]))
    keys = int(draw.choice([k for k in (2, 4, 8) if k <= heads and k % layout.tp == 0]))
    size = int(draw.choice([4, 8]))
    length = int(draw.choice([8, 16])) * (2 if layout.cp * layout.tp > 4 else 1)
    return Design(
        batch=int(draw.choice([4, 8])), length=length, width=heads * size, heads=heads, keys=keys,
        layers=int(draw.choice([2, 4] if layout.pp > 1 else [2, 3])) * layout.vpp, inner=int(draw.choice([24, 40, 64])),
        words=int(draw.choice([48, 64, 96])), fused=str(draw.choice(["groups", "blocks", ""])),
        gated=bool(draw.randint(2)), tied=bool(draw.randint(2)), rms=bool(draw.randint(2)),
        parallel_loss=bool(draw.randint(2)), rope=bool(draw.randint(2)),
        clip=bool(layout.zero and layout.ranks == layout.dp and draw.randint(2)),
        experts=int(draw.choice([4, 8])) if layout.ep > 1 else 0, permuted=layout.exchange, apart=layout.tp > 1,
        choices=int(draw.choice([1, 2])) if layout.ep > 1 else 0,
    )  # fmt: skip


def faults(
    draw: np.random.RandomState, layout: Layout, d: Design
) -> Iterator[tuple[Fault, tuple[Place, ...], Optional[tuple[int, ...]]]]:
    """The faults that a layout can have, with their truths."""
    if d.experts:
        yield from expert_faults(draw, layout, d)
        return
    layer = int(draw.randint(d.layers))
    at = f"layers.{layer}"
    layout.ranks - 1
    int(draw.randint(layout.ranks))
    norm = "rms_norm" if d.rms else "layer_norm"
    side = str(draw.choice(["proj", "down"]))
    row = f"{at}.{side}"
    qkv = [f"{at}.qkv"] if d.fused else [f"{at}.query", f"{at}.key", f"{at}.value"]
    stage = layer * layout.pp * layout.vpp // d.layers % layout.pp
    of_stage = layout.stage(stage)
    one = int(draw.choice(of_stage))
    size = float(10.0 ** draw.uniform(-2.0, -0.5))
    updated = str(draw.choice([f"{at}.up.weight", f"{row}.weight", f"{at}.norm1.weight"]))
    behind: tuple[Place, ...] = ((f"optimizer.{updated}", "mul", "forward"),)
    kinds = [
        f"{row}.linear",
        f"{at}.softmax",
        f"{at}.mul" if d.gated else f"{at}.gelu",
        f"{qkv[0]}.linear",
        f"{at}.norm2.{norm}",
    ]
    where = str(draw.choice(kinds))
    scope, _, kind = where.rpartition(".")
    yield Fault("wrong part", where, one, size=size), ((scope, kind, "forward"),), (one,)
    if layout.tp > 1:
        place: tuple[Place, ...] = ((row, "add", "forward"), (row, "linear", "forward"))
        if not layout.sp:
            yield Fault("not reduced", row), place, None
            yield (
                Fault("backward not reduced", at),
                ((f"{at}.norm2", norm, "backward"), (f"{at}.up", "linear", "backward")),
                None,
            )
            if layout.dp > 1 or layout.cp > 1 or layout.tp == 4:
                yield Fault("wrong group", row), place, None
        else:
            yield Fault("gather order", at), tuple((one, "linear", "forward") for one in qkv), None
            yield (
                Fault("norm not reduced", f"{at}.norm1.weight"),
                ((f"optimizer.{at}.norm1.weight", "mul", "forward"),),
                None,
            )
        yield Fault("bias per rank", row), ((row, "add", "forward"), (at, "add", "forward")), None
        yield Fault("shard order", f"{at}.up.weight"), ((f"{at}.up", "linear", "forward"),), None
        if d.fused == "blocks":
            yield Fault("blocks ignored", f"{at}.qkv"), ((f"{at}.qkv", "linear", "forward"),), None
        if d.gated:
            yield Fault("blocks ignored", f"{at}.up"), ((f"{at}.up", "linear", "forward"),), None
        yield (
            Fault("vocabulary edge", "embedding", layout.tp - 1 if layout.pp == 1 else 1),
            (
                ("embedding", "embedding", "forward"),
                ("layers.0.norm1", norm, "forward"),
                ("layers.0", "add", "forward"),
            ),
            None,
        )
        if d.parallel_loss:
            yield Fault("maximum not reduced", "loss"), (("loss", "sub", "forward"), ("loss", "amax", "forward")), None
            yield Fault("sum not reduced", "loss"), (("loss", "log", "forward"), ("loss", "sum", "forward")), None
    if layout.ranks > layout.pp:
        yield (
            Fault("replica differs", f"{at}.norm1.weight", one, size=size),
            ((f"{at}.norm1", norm, "forward"),),
            (one,),
        )
    if layout.zero:
        norm_of_all = tuple(("optimizer.clip", kind, "forward") for kind in ("mul", "sum", "add", "rsqrt"))
        every = (("optimizer", "mul", "forward"), ("optimizer", "sub", "forward"), *norm_of_all)
        yield Fault("stale shard", "", one, size=size), every, None
        if layout.zero.startswith("fsdp"):
            first = ((f"{at}.up", "linear", "forward"),)
            yield Fault("shard gathered in another order", f"{at}.up.weight"), first, None
            yield Fault("old shard gathered", f"{at}.up.weight", one, size=size), first, None
        if d.clip:
            yield Fault("norm not reduced over shards"), every, None
        behind = (*behind, *norm_of_all) if layout.zero == "fsdp" else every
    if layout.dp > 1:
        yield Fault("undivided", updated), behind, None
        yield Fault("gradient not reduced", updated), behind, None
        wrong = tuple(r for r in range(layout.ranks) if layout.at(r, "dp") == 1)
        yield (
            Fault("same data", "data", None if layout.dp == 1 else wrong[0] if len(wrong) == 1 else None),
            (("embedding", "embedding", "forward"),),
            None,
        )
    if layout.cp > 1:
        if d.rope:
            yield Fault("wrong positions", at), ((at, "rope", "forward"),), None
        yield Fault("keys not gathered", at), ((at, "matmul", "forward"),), None
        yield Fault("local mask", at), ((at, "masked_fill", "forward"),), None
        if layout.zigzag:
            yield Fault("contiguous data", "data"), (("embedding", "embedding", "forward"),), None
    if layout.pp > 1 and layout.micro > 1:
        first = f"layers.{d.layers // (layout.pp * layout.vpp)}"
        yield Fault("stale activation", "stage"), ((f"{first}.norm1", norm, "forward"), (first, "add", "forward")), None
    if layout.pp > 1 and d.tied:
        yield Fault("tied not reduced", "embedding.weight"), (("optimizer.embedding.weight", "mul", "forward"),), None
    if layout.micro > 1:
        yield (
            Fault("micro undivided", "loss"),
            (
                ("loss", "mean", "backward"),
                ("loss", "cross_entropy", "backward"),
                *((f"optimizer.{name}", "mul", "forward") for name in ("embedding.weight", "head.weight")),
            ),
            None,
        )


def draw_cases(
    seed: int,
    layout: str,
    clean: int = 1,
    style: str = "values",
    level: str = "L1",
    base: str = "float32",
    most: int = 99,
) -> Iterator[Case]:
    """The clean pairs of a layout, and a pair for each fault that it can have, at most `most`."""
    draw = np.random.RandomState([seed, sum(map(ord, layout))])
    known = LAYOUTS[layout]
    for number in range(clean):
        design = design_for(draw, known)
        own = int(draw.randint(1 << 30))
        yield Case(
            f"{layout}-clean{number}-{style}-{base}-{level}-{seed}",
            known,
            design,
            Fault(),
            (),
            None,
            style,
            level,
            base,
            own,
        )
    design = design_for(draw, known)
    some = [*faults(draw, known, design)]
    for number in sorted(draw.permutation(len(some))[:most]):
        fault, truth, ranks = some[number]
        own = int(draw.randint(1 << 30))
        if base == "bfloat16":  # rounding there is 4e-3
            fault = replace(fault, size=max(0.1, fault.size))
        name = f"{layout}-{fault.kind.replace(' ', '_')}-{number}-{style}-{base}-{level}-{seed}"
        yield Case(name, known, design, fault, truth, ranks, style, level, base, own)
