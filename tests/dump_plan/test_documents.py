"""The files of `npucmp plan` against the documents of the tools that read them.

The tables here are written from those documents, by hand, and import nothing of npucmp/dump_plan/tool_configs.py:
msprobe 26.2 (config_json_introduct.md, atb_data_dump_instruct.md), CANN 9.0 (the runtime's "Dump configuration", the
options of both TensorFlow adapters), MindSpore 2.10 (dump.md; its categories are also those that its library lists).
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any, Callable

import pytest

from npucmp import plan
from npucmp.dump_plan.frameworks import names
from npucmp.dump_plan.request import QUESTIONS
from npucmp.errors import UsageError

Check = Callable[[Any], bool]
RANGES = re.compile(r"[0-9]+(-[0-9]+)?(\|[0-9]+(-[0-9]+)?)*")


def one_of(*words: str) -> Check:
    return lambda value: value in words


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_true_or_false(value: Any) -> bool:
    return isinstance(value, bool)


def texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def numbers(value: Any) -> bool:
    """A list of integers and of texts like "4-6"."""
    return isinstance(value, list) and all(
        type(one) is int or (isinstance(one, str) and re.fullmatch("[0-9]+-[0-9]+", one)) for one in value
    )


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


def modes(value: Any) -> bool:
    return value == ["all"] or (texts(value) and set(value) <= {"forward", "backward", "input", "output"})


MSPROBE_TASK = {"scope": texts, "list": texts, "data_mode": modes}
MSPROBE = table(
    {
        "task": one_of("statistics", "tensor", "acc_check", "nan_check", "structure", "exception_dump"),
        "dump_path": is_text,
        "rank": numbers,
        "step": numbers,
        "level": one_of("L0", "L1", "L2", "mix", "debug"),
        "async_dump": is_true_or_false,
        "dump_enable": is_true_or_false,
        "extra_info": is_true_or_false,
        "precision": one_of("high", "low"),
        "risk_level": one_of("ALL", "CORE", "FOCUS"),
        "statistics": table({**MSPROBE_TASK, "tensor_list": texts, "summary_mode": one_of("statistics", "md5", "xor")}),
        "tensor": table({**MSPROBE_TASK, "summary_mode": one_of("statistics", "md5", "xor"), "bench_path": is_text}),
    },
    "task",
    "dump_path",
)
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
CATEGORIES = {
    "max", "min", "avg", "count", "negative zero count", "positive zero count", "nan count", "negative inf count",
    "positive inf count", "zero count", "md5", "l2norm", "hash", "hash:sha1", "hash:md5",
}  # fmt: skip
MINDSPORE = table(
    {
        "common_dump_settings": table(
            {
                "op_debug_mode": one_of(0, 3, 4),
                "dump_mode": one_of(0, 1, 2),
                "path": is_text,
                "net_name": is_text,
                "iteration": lambda value: value == "all" or barred(value),
                "saved_data": one_of("tensor", "statistic", "full"),
                "input_output": one_of(0, 1, 2),
                "kernels": texts,
                "support_device": numbers,
                "statistic_category": lambda value: set(value) <= CATEGORIES,
                "file_format": one_of("npy", "bin"),
            },
            "dump_mode", "path", "net_name", "iteration", "input_output", "kernels", "support_device", "op_debug_mode",
        ),
        "e2e_dump_settings": table({"enable": is_true_or_false, "trans_flag": is_true_or_false}),
    }
)  # fmt: skip
ATB = table(
    {
        "task": one_of("tensor", "statistics", "all"),
        "dump_enable": is_true_or_false,
        "exec_range": lambda value: value in ("all", "none") or re.fullmatch("[0-9]+,[0-9]+", value) is not None,
        "ids": is_text,
        "op_name": is_text,
        "save_child": is_true_or_false,
        "device": is_text,
        "filter_level": one_of(0, 1, 2),
    }
)
SWITCH = table({"Switch": table({"GraphFusion": one_of({"ALL": "off"}), "UBFusion": one_of({"ALL": "off"})})}, "Switch")


def acl(value: Any) -> bool:
    """Detection excludes the dump of a model."""
    assert ACL_DUMP(value["dump"]) and set(value) == {"dump"}
    return ("dump_debug" in value["dump"]) != ("dump_list" in value["dump"])


FILES = {"acl.json": acl, "data_dump.json": MINDSPORE, "fusion_switch.cfg": SWITCH}
OPTIONS = {  # of both adapters: the field of TensorFlow 1's session option, and what it may be
    "enable_dump": ("b", is_true_or_false),
    "enable_dump_debug": ("b", is_true_or_false),
    "dump_path": ("s", is_text),
    "dump_step": ("s", barred),
    "dump_mode": ("s", one_of("input", "output", "all")),
    "dump_data": ("s", one_of("tensor", "stats")),
    "dump_layer": ("s", is_text),
    "dump_debug_mode": ("s", one_of("aicore_overflow", "atomic_overflow", "all")),
    "fusion_switch_file": ("s", is_text),
    "deterministic": ("i", one_of(0, 1)),
}
ONE = re.compile(r'custom_op\.parameter_map\["(\w+)"\]\.([bsi]) = (?:tf\.compat\.as_bytes\((.*)\)|(.*))')
TWO = re.compile(r"npu\.global_options\(\)\.(dump_config\.)?(\w+) = (.*)")
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


@pytest.mark.parametrize("question, framework", sorted(REFUSED))
def test_what_a_framework_cannot_make_is_told(question, framework):
    with pytest.raises(UsageError, match=f"{framework} has no dump for {question}: .*use compare"):
        plan(question, framework, "here")


@pytest.mark.parametrize("framework", names())
def test_files_are_as_documented(framework):
    for one, question, side in EVERY:
        if one == framework:
            for name, text in plan(question, one, "here", side=side, step="1,4-6", rank="0,2-3").files.items():
                if name != "run.sh":
                    check = FILES.get(name) or (ATB if framework == "mindie" else MSPROBE)
                    assert check(json.loads(text))


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("side", ["target", "golden"])
def test_options_of_tensorflow_are_as_documented(question, side):
    for line in plan(question, "tensorflow", "here", side=side, ops=["a/b"]).script:
        if found := ONE.fullmatch(line.code):
            field, check = OPTIONS[found[1]]
            assert found[2] == field and check(eval(found[3] or found[4], {}))
    for line in plan(question, "tensorflow2", "here", side=side, ops=["a/b"]).script:
        if found := TWO.fullmatch(line.code):
            assert bool(found[1]) == (found[2] not in ("fusion_switch_file", "deterministic"))
            assert OPTIONS[found[2]][1](eval(found[3], {}))


def test_detection_and_dump_exclude_each_other():
    for question in ("overflow", "compare"):
        options = {
            ONE.fullmatch(line.code)[1]
            for line in plan(question, "tensorflow", "here").script
            if "custom_op" in line.code
        }
        assert len(options & {"enable_dump", "enable_dump_debug"}) == 1


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
