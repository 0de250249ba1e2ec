"""The second sheet: real dumps, of msprobe, MindSpore and TensorFlow, with faults that were planted while they ran.

    python tests/corpus/real/make_dumps.py FOLDER          (torch, transformers, mindstudio-probe)
    python -m tests.corpus --real FOLDER

reads the manifest.json that make_dumps.py wrote; without a manifest, FOLDER is ../shared/data or a copy of it.
"""

from __future__ import annotations

import json
import math
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Iterator, Mapping

from tests.corpus.score import Result, grade
from tests.corpus.subject import asked
from tests.corpus.tape import Address
from tests.corpus.truth import Truth
from tests.test_samples import SHARED_FAULTED

SHARED = (  # target, golden, operator at place 1 ("" of a clean pair), cause, what was planted
    *(
        (f"msprobe/{target}", f"msprobe/{golden}", name, cause, "planted")
        for target, golden, name, cause in SHARED_FAULTED
    ),
    ("msprobe/bert/R", "msprobe/bert/A", "", "", "repeat"),
    ("msprobe/bert/C", "msprobe/bert/A", "", "", "bfloat16 autocast"),
    ("msprobe/bert/R_stat_L1", "msprobe/bert/A_stat_L1", "", "", "repeat"),
    ("mindspore/B", "mindspore/A", "LayerNorm-op0", "BORN", "epsilon"),
    ("mindspore/R", "mindspore/A", "", "", "repeat"),
    ("tf/faulted/npy", "tf/golden/npy", "resnet_block_1_bn2_FusedBatchNormV3", "BORN", "epsilon"),
)


def manifest(folder: Path) -> list[dict[str, Any]]:
    """The pairs of a folder."""
    if (folder / "manifest.json").is_file():
        found = json.loads((folder / "manifest.json").read_text())
        assert isinstance(found, list)
        return found
    common = {"precision": "float32", "level": "L1", "steps": 1, "ranks": 1, "step": None, "rank": None}
    return [
        {
            **common,
            "name": f"{target} {kind}",
            "target": target,
            "golden": golden,
            "network": target.split("/")[-2],
            "kind": kind,
            "clean": not operator,
            "operators": [operator],
            "causes": [cause],
            "task": "statistics" if "stat" in target else "md5" if "md5" in target else "tensor",
        }
        for target, golden, operator, cause, kind in SHARED
    ]


def graded(row: Mapping[str, Any], folder: Path) -> Result:
    """One pair, asked and graded."""
    answer = asked(folder / row["target"], folder / row["golden"])
    causes = frozenset(row["causes"]) | ({"UNKNOWN", "WORSENED"} if row["task"] == "statistics" else set())
    steps = [row["step"]] if row.get("step") is not None else range(int(row["steps"]))
    ranks = [row["rank"]] if row.get("rank") is not None else range(int(row["ranks"]))
    names = {(step, rank, name): causes for step in steps for rank in ranks for name in row["operators"]}
    if (
        not any(answer.operator == name for _, _, name in names) and not row["clean"]
    ):  # names of graphs end in their own
        names |= {
            (s, r, answer.operator): c for (s, r, name), c in names.items() if answer.operator.endswith(f"_{name}")
        }
    truth = Truth(
        {} if row["clean"] else {Address(0, 0, "", "", 0): causes},
        statuses=(0, 2) if row["task"] == "statistics" else (0,),
    )
    facts = {key: str(row[key]) for key in ("network", "precision", "level", "task", "steps", "ranks")}
    facts.update(part=row.get("part", "all"), format="msprobe", noise="", size="", phase="", variation="")
    told = tuple(f"{name} {'|'.join(sorted(causes))}" for name in row["operators"])
    return Result(
        row["name"], row["kind"], facts, row["clean"], math.inf, None, grade(answer, truth, names), answer, told
    )


def run(folder: Path, jobs: int) -> Iterator[Result]:
    """All pairs of a folder, in order."""
    rows = manifest(folder)
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(graded, rows, [folder] * len(rows), chunksize=4)
