"""Errors in the forms for machines: the last line of --json and jsonl is an object with the exit status.

A control is a pair that can be compared: its last object has the exit status of the command, and no error.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.synthetic import write_run

COMMANDS = {  # words → whether a second dump follows
    "compare": True,
    "rerun-diff": True,
    "precheck": True,
    "check": False,
    "overflow": False,
    "replay": False,
}
FORMS = (["--json"], ["--report-format", "jsonl"])


def draw(random: np.random.Generator, folder: Path) -> dict:
    seed = int(random.integers(2**31))
    for side in ("target", "golden"):
        write_run(folder / side, _chain(np.random.default_rng(seed)))
    command, form = str(random.choice([*COMMANDS])), FORMS[int(random.integers(len(FORMS)))]
    fault = str(random.choice(["none", "missing", "empty", "cut", "text", "step", "option"]))
    dumps = ["target", "golden"] if COMMANDS[command] else ["target"]
    at = int(random.integers(len(dumps)))
    more = []
    if fault == "missing":
        dumps[at] = str(random.choice(["nothing", "tar get", "golden/step9", "nothing.npz"]))
    elif fault == "empty":
        dumps[at] = "empty"
        (folder / "empty").mkdir()
    elif fault == "text":
        dumps[at] = "notes.txt"
        (folder / "notes.txt").write_text("loss 1.25 at step 3\n")
    elif fault == "cut":
        for path in (folder / dumps[at]).rglob("dump.json"):
            path.write_text(path.read_text()[: int(random.integers(1, 40))])
    elif fault == "step":
        more = ["--step", str(int(random.integers(3, 99)))]
    elif fault == "option":
        more = ["--no-such-option"]
    run = {"do": [command, *dumps, *more, *form], "never": ["Traceback"]}
    if fault == "none":
        run |= {"exit": [0, 1, 2], "never": ["Traceback", '"error": ?\\{', '"kind": ?"error"']}
        run["says"] = ['"exit_status": ?[012]']
    else:
        run |= {"exit": [2], "says": ['"exit_status": ?2', '"message": ?"[^"]', '"(type|kind)": ?"']}
    return {"kind": f"errors for machines{': control' if fault == 'none' else ''}", "runs": [run]}


def _chain(random: np.random.Generator) -> dict:
    x = random.standard_normal((4, 6)).astype("f4")
    weight = random.standard_normal((6, 6)).astype("f4")
    product = x @ weight.T
    return {
        "Functional.linear.0.forward": {"in": [x, weight], "out": [product]},
        "Torch.tanh.0.forward": {"in": [product], "out": [np.tanh(product)]},
    }
