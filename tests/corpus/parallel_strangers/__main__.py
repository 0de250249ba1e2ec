"""`python -m tests.corpus.parallel_strangers OUT [--only GLOB]`: write all pairs and OUT/manifest.json."""

from __future__ import annotations

import argparse
import fnmatch
import json
import shutil
from pathlib import Path
from typing import Any, Iterator, NamedTuple

import msprobe.pytorch  # once, for all processes  # noqa: F401
import numpy as np

from tests.corpus.parallel_strangers import (
    clip,
    convnext,
    detection,
    gemma,
    llama,
    megatron,
    mixtures,
    serving,
    split_convolutions,
    t5,
    unet,
    vision,
)
from tests.corpus.parallel_strangers.world import Fault, Layout, Made, names_at, ran, write_json

NETWORKS = {
    "serving": serving,
    "megatron": megatron,
    "vision": vision,
    "convolutions": split_convolutions,
    "mixtures": mixtures,
    "llama": llama,
    "detection": detection,
    "unet": unet,
    "gemma": gemma,
    "t5": t5,
    "clip": clip,
    "convnext": convnext,
}
IN_STATISTICS = 3  # faults of each layout that are recorded by statistics too; a network may have a number of its own


class Pair(NamedTuple):
    name: str
    network: Any
    of: str
    layout: Layout
    fault: Fault
    task: str
    level: str


def pairs() -> Iterator[Pair]:
    for kind, network in NETWORKS.items():
        for of, layout in network.LAYOUTS.items():
            for task, suffix in (("tensor", ""), ("statistics", "-stat")):
                yield Pair(f"{kind}_{of}-clean{suffix}", network, of, layout, Fault(), task, "L1")
            yield Pair(f"{kind}_{of}-clean-mix", network, of, layout, Fault(), "tensor", "mix")
            for number, fault in enumerate(layout.faults):
                title = f"{kind}_{of}-{fault.kind.replace('@', '_at_')}"
                yield Pair(title, network, of, layout, fault, "tensor", "L1")
                if number < getattr(network, "IN_STATISTICS", IN_STATISTICS):
                    yield Pair(f"{title}-stat", network, of, layout, fault, "statistics", "L1")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="*")
    parser.add_argument("--base", default="float32")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    goldens: dict[str, Made] = {}
    known = options.out / "manifest.json"
    manifest = json.loads(known.read_text()) if known.exists() else {}
    for pair in pairs():
        if not any(fnmatch.fnmatch(pair.name, glob) for glob in options.only.split(",")):
            continue
        stem = pair.name.partition("-")[0]
        golden = f"golden_{stem}-{pair.task}-{pair.level}"

        def run(fault: Fault, title: str, is_golden: bool, pair: Pair = pair) -> Made:
            shutil.rmtree(options.out / title, ignore_errors=True)
            return ran(
                pair.network, pair.layout, fault, options.out / title, is_golden, pair.task, pair.level, options.base
            )

        if golden not in goldens:
            goldens[golden] = run(Fault(), golden, True)
        made, one_card = run(pair.fault, pair.name, False), goldens[golden]
        if not pair.fault.kind:
            np.testing.assert_allclose(
                made.figures, one_card.figures, rtol=1e-9 if options.base == "float64" else 1e-3, atol=1e-9
            )
        truth = names_at(one_card.places, pair.fault.truth) if pair.fault.kind else None
        some = {scope.partition(":")[0] for scope in pair.fault.truth}
        manifest[pair.name] = {
            "target": pair.name, "golden": golden, "layout": stem, "fault": pair.fault.kind or None,
            "level": pair.level, "task": pair.task, "dtype": options.base, "root": truth, "golden_root": truth,
            "ranks": None if pair.fault.rank is None else [pair.fault.rank],
            "collectives": sorted(
                name for name, places in made.places.items()
                if name.startswith("Distributed") and any(fnmatch.filter(places, scope) for scope in some)
            ),
        }  # fmt: skip
        change = np.abs(np.subtract(made.figures, one_card.figures)).max()
        print(pair.name, made.figures[:2], f"change {change:.2e}", truth and truth[:3], flush=True)
        write_json(options.out / "manifest.json", manifest)


main()
