"""msprobe's compare (mindstudio-probe): the operators of the rows whose Result is not "pass", in the order of its CSV.

Each step and rank is compared by its dump.json; a golden of one card with every rank. Its comparison of PyTorch with
MindSpore imports mindspore; these pairs are left out.
"""

from __future__ import annotations

import csv
import shutil
import tempfile
from argparse import Namespace
from pathlib import Path

from msprobe.core.compare.auto_compare import compare_auto_mode  # type: ignore[import-not-found,unused-ignore]

from tests.corpus.bench.adapters import Accusation
from tests.corpus.bench.adapters.arrays import places

DATA = ("values", "statistics", "md5")
GROUPS = ("operator", "script", "parallel")


def accuse(target: Path, golden: Path) -> list[Accusation]:
    found: dict[Accusation, None] = {}
    for place in places(target, golden):
        output = Path(tempfile.mkdtemp())
        try:
            compare_auto_mode(_arguments(place.target, place.golden, output))
            for path in sorted(output.rglob("*.csv")):
                for name in _marked(path):
                    found[Accusation(name, place.step)] = None
        finally:
            shutil.rmtree(output, ignore_errors=True)
    return list(found)


def _arguments(target: Path, golden: Path, output: Path) -> Namespace:
    return Namespace(
        target_path=str(target / "dump.json"), golden_path=str(golden / "dump.json"), output_path=str(output),
        fuzzy_match=False, data_mapping=None, diff_analyze=False, is_print_compare_log=False, xlsx=False,
        cell_mapping=None, layer_mapping=None, consistent_check=False, backend=None, config=None, rank=None, step=None,
        api_mapping=None,
    )  # fmt: skip


def _marked(path: Path) -> list[str]:
    found = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            if row.get("Result", "pass").strip().lower() not in ("pass", ""):
                names = [row.get(key, "") for key in ("Bench Name", "NPU Name", "Target Name", "Golden Name")]
                name = next(one for one in names if one and one != "N/A")
                found.append(_operator(name))
    return found


def _operator(name: str) -> str:
    """ "Functional.linear.3.forward" of "Functional.linear.3.forward.input.0"."""
    words = name.split(".")
    phase = next((k for k, word in enumerate(words) if word in ("forward", "backward")), len(words))
    return ".".join(words[: phase + 1])
