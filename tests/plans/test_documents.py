"""The files of `npucmp plan` against the documents of the tools that read them.

The tables here are written from those documents, by hand, and import nothing of npucmp/plans/tool_configs.py:
msprobe 26.2 (config_json_introduct.md, atb_data_dump_instruct.md), CANN 9.0 (the runtime's "Dump configuration", the
options of both TensorFlow adapters), MindSpore 2.10 (dump.md; its categories are also those that its library lists).
"""

from __future__ import annotations

import re
import subprocess
from typing import Any, Callable

from npucmp import plan
from npucmp.plans.frameworks import names
from npucmp.plans.request import QUESTIONS

Check = Callable[[Any], bool]
RANGES = re.compile(r"[0-9]+(-[0-9]+)?(\|[0-9]+(-[0-9]+)?)*")


def one_of(*words: str) -> Check:
    return lambda value: value in words


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def barred(value: Any) -> bool:
    """ "0|3-5"."""
    return bool(RANGES.fullmatch(value))


def table(keys: dict[str, Any], *needed: str) -> Check:
    """An object of no keys but these, each as its own check says; `needed` have to be there."""

    def check(value: Any) -> bool:
        assert set(value) <= set(keys), f"unknown keys: {set(value) - set(keys)}"
        assert set(needed) <= set(value), f"missing keys: {set(needed) - set(value)}"
        wrong = [key for key, one in value.items() if not keys[key](one)]
        assert not wrong, f"{wrong}: {value}"
        return True

    return check


ACL_MODEL = table({"model_name": is_text, "layer": texts}, "model_name")
ACL_DUMP = table(
    {
        "dump_list": lambda value: bool(value) and all(map(ACL_MODEL, value)),
        "dump_path": is_text,
        "dump_mode": one_of("input", "output", "all"),
        "dump_op_switch": one_of("on", "off"),
        "dump_data": one_of("tensor", "stats"),
        "dump_step": barred,
        "dump_debug": one_of("on", "off"),
    },
    "dump_path",
)


def acl(value: Any) -> bool:
    """Detection excludes the dump of a model."""
    assert ACL_DUMP(value["dump"]) and set(value) == {"dump"}
    return ("dump_debug" in value["dump"]) != ("dump_list" in value["dump"])


REFUSED = {("fusion-diff", name) for name in ("pytorch", "mindspore", "vllm", "sglang", "mindie")} | {
    ("replay", "mindie")
}
EVERY = [
    (one, asks, side)
    for one in names()
    for asks in QUESTIONS
    for side in ("target", "golden")
    if (asks, one) not in REFUSED
]


def test_scripts_are_scripts(tmp_path):
    """bash and Python read every line of them; all name their source."""
    shells = []
    for framework, question, side in EVERY:
        found = plan(question, framework, str(tmp_path / "it's"), side=side)
        assert "# Source: " in found.files["run.sh"]
        shells.append(found.files["run.sh"])
        if framework != "acl":  # which is C
            compile("\n".join(line.code for line in found.script), "script", "exec")
    (tmp_path / "all.sh").write_text("\n".join(shells), encoding="utf-8")
    got = subprocess.run(["bash", "-n", tmp_path / "all.sh"], capture_output=True, text=True)
    assert (got.returncode, got.stderr) == (0, "") and len(shells) == 114
