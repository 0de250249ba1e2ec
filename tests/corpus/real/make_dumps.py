#!/usr/bin/env python3
"""Makes pairs of real msprobe dumps, target and golden, with what is wrong in each: a corpus to measure npucmp on.

Small networks with random weights run forward and backward on CPU under mindstudio-probe's PrecisionDebugger: BERT,
Llama, ViT, ConvNeXt, GPT-2, Mixtral, Qwen3, T5, a U-Net, training for three steps, and two ranks over gloo. A fault is
planted into the target (plants.py) and confirmed bit by bit against the same run without it (truth.py). Clean pairs
differ in threads, kernels, precision, the implementation of attention, or in that one computes its activations again
on the way back. Recordings may be of inputs, outputs, forward or backward alone. tables.py holds a row for each pair.

Needs torch, transformers and mindstudio-probe; made with torch 2.13, transformers 5.23 and mindstudio-probe 26.2.
The networks are random with fixed seeds: another machine gives other roundings, and the same truths.

    python -m venv venv && venv/bin/pip install torch transformers mindstudio-probe
    venv/bin/python tests/corpus/real/make_dumps.py real_dumps
    venv/bin/python tests/corpus/real/make_dumps.py real_dumps --only unet,t5
    venv/bin/python tests/corpus/real/make_dumps.py real_dumps --matching "recomputed|3 steps"

writes real_dumps/runs/... and real_dumps/manifest.json, a list of pairs: name, target and golden (relative to the
folder), network, kind, clean, operators (names in the target that are right at place 1), causes (the right ones),
precision, level, task, part, steps, ranks, step and rank of the fault (null where there is one only, rank also where
the fault is in both), note. A pair whose dumps do not confirm its truth is left out, with a message. 370 pairs take
seven minutes on two cores and 1.5 GB.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import time
from pathlib import Path
from typing import Any, Optional

import ranks
import runs
import torch
import transformers
import truth
from networks import NETWORKS
from plants import KINDS
from runs import Run
from tables import Pair, pairs


def make_run(work: tuple[Run, Path]) -> tuple[Run, str]:
    """Makes one dump, in a process of its own; returns why it failed, "" if it did not."""
    run, out = work
    folder = runs.fresh(out / run.folder)
    train = ranks.train if run.network in ranks.PROGRAMS else runs.train
    return run, runs.quietly(lambda: train(run, folder), folder.with_name(folder.name + ".log"))


def check_pair(work: tuple[Pair, Path]) -> dict[str, Any] | str:
    """The row of the manifest, or why there is none."""
    pair, out = work
    try:
        return row(pair, out) if pair.clean else faulty_row(pair, out)
    except (OSError, ValueError, KeyError, StopIteration, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def row(pair: Pair, out: Path) -> dict[str, Any]:
    """What the manifest says of every pair."""
    target, golden = pair.target, pair.golden
    differing, total = truth.difference(out / target.folder, out / golden.folder)
    precisions = (target.setting.precision, golden.setting.precision)
    return {
        "name": name_of(pair),
        "target": target.folder,
        "golden": golden.folder,
        "network": target.network,
        "kind": pair.kind,
        "clean": pair.clean,
        "operators": [],
        "causes": [],
        "precision": precisions[0] if precisions[0] == precisions[1] else " against ".join(precisions),
        "level": target.recording.level,
        "task": target.recording.task,
        "part": target.recording.part,
        "steps": target.recording.steps,
        "ranks": ranks.RANKS if target.network in ranks.PROGRAMS else 1,
        "step": None,
        "rank": None,
        "note": f"{differing} of {total} tensors differ in bits",
    }


def name_of(pair: Pair) -> str:
    """Unique, and says what is in the pair."""
    target, golden, fault = pair.target, pair.golden, pair.target.fault
    parts = [target.network, pair.kind]
    if fault is not None:
        parts += [fault.where.replace(".forward", ""), str(fault.amount).replace("torch.", "") if fault.amount else ""]
        parts += [f"step {step}" for step in fault.steps] + [f"rank {rank}" for rank in fault.ranks]
    if target.setting != golden.setting or target.setting != runs.Setting():
        parts += [_words(target.setting), "against", _words(golden.setting)]
    if target.recording != runs.Recording():
        parts += [target.recording.level, target.recording.task, f"{target.recording.steps} steps"]
    if target.recording.part != "all":
        parts += [f"{target.recording.part} only"]
    return " ".join(part for part in parts if part)


def _words(setting: runs.Setting) -> str:
    usual = runs.Setting()
    others = [str(value) for value, other in zip(setting[1:], usual[1:]) if value != other]
    return " ".join([setting.precision, *others])


def faulty_row(pair: Pair, out: Path) -> dict[str, Any] | str:
    """With the truth, if the dumps confirm it."""
    fault, (faulty, clean) = pair.target.fault, pair.proof
    assert fault is not None
    if fault.truth not in truth.operators(out / pair.target.folder):
        return f"{fault.truth} was not recorded"
    only = fault.ranks[0] if len(fault.ranks) == 1 else None
    place = truth.first_difference(out / faulty.folder, out / clean.folder, fault.truth, only)
    if place is None:
        return "the fault changed nothing"
    if place.operator != fault.truth or (fault.steps and place.step != fault.steps[0]):
        return f"first difference at {place}, the table says {fault.truth}"
    causes = list(KINDS[fault.kind].causes)
    if pair.target.recording.part == "input" and not place.inputs_agree:
        causes = ["GAP"]  # who wrote it does not show
    # A module that shows what runs inside it unseen is where it is born.
    if fault.truth.startswith("Module.") and place.inputs_agree:
        causes = ["BORN"]
    elif place.inputs_agree != ("BORN" in causes) and "UNKNOWN" not in causes:
        return f"inputs {'agree' if place.inputs_agree else 'differ'} at {fault.truth}, which is no {causes}"
    if pair.target.setting.precision != pair.golden.setting.precision and "BORN" in causes:
        causes.append("WORSENED")  # its inputs do not agree bit for bit
    if pair.target.recording.task == "statistics":
        causes.append("UNKNOWN")  # statistics that agree prove nothing
    if pair.target.recording.part == "output":
        causes = ["UNKNOWN", "GAP"]  # what it read is not known
    if pair.target.recording.part == "backward":
        causes.append("UNKNOWN")  # nor what its forward saved
    several = pair.target.recording.steps > 1
    return {
        **row(pair, out),
        "operators": [fault.truth, *place.enclosing],
        "causes": list(dict.fromkeys(causes)),
        "step": place.step if several else None,
        "rank": only,
    }


def selected(only: Optional[list[str]], matching: str, quick: bool) -> list[Pair]:
    """The pairs asked for, by network and by name; quick: of each network one clean and one faulty."""
    chosen = [
        pair
        for pair in pairs({name: network.attentions for name, network in NETWORKS.items()})
        if (not only or pair.target.network in only) and re.search(matching, name_of(pair))
    ]
    if not quick:
        return chosen
    return list({(pair.target.network, pair.clean): pair for pair in reversed(chosen)}.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write into; runs of the same name are replaced")
    parser.add_argument("--only", type=lambda text: text.split(","), help="networks, separated by commas")
    parser.add_argument("--matching", default="", help="regular expression that the names of pairs hold")
    parser.add_argument("--quick", action="store_true", help="one clean and one faulty pair of each network")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    options = parser.parse_args()
    began, out = time.monotonic(), options.out.resolve()
    todo = selected(options.only, options.matching, options.quick)
    needed = dict.fromkeys(run for pair in todo for run in pair.runs)
    # Everything heavy is imported here, once, and nothing is computed: each run forks from this state.
    _ = (torch, transformers.T5ForConditionalGeneration, transformers.MixtralForCausalLM)
    rows: list[dict[str, Any]] = []
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=1) as pool:
        for run, failure in pool.imap_unordered(make_run, [(run, out) for run in needed]):
            if failure:
                print(f"failed: {run.folder}: {failure}", file=sys.stderr)
        for pair, result in zip(todo, pool.imap(check_pair, [(pair, out) for pair in todo], chunksize=1)):
            if isinstance(result, str):
                print(f"dropped: {name_of(pair)}: {result}", file=sys.stderr)
            else:
                rows.append(result)
    (out / "manifest.json").write_text(json.dumps(rows, indent=1))
    faults = sum(not entry["clean"] for entry in rows)
    seconds = time.monotonic() - began
    print(f"{len(rows)} pairs, {faults} of them with a fault, {len(todo) - len(rows)} dropped, {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
