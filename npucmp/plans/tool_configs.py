"""Configurations that select what a tool dumps. The keys of each tool occur only here, with their source.

Steps and ranks are ranges, both ends included; () means all. Names are in the form of the tool; () means all.
"""

from __future__ import annotations

import json
from typing import Any, Sequence, Union

from npucmp.plans.request import DETECTION, MD5, STATISTICS, VALUES, Ranges

Row = dict[str, Any]
DEVICES = 8  # maximum of a server
FUSION_OFF = {"Switch": {"GraphFusion": {"ALL": "off"}, "UBFusion": {"ALL": "off"}}}  # fusion_switch.cfg, CANN 8.0


def text_of(config: Row) -> str:
    """Return the text of a configuration: ASCII JSON, so that a name of a dump or folder is always plain text."""
    return json.dumps(config, indent=4, ensure_ascii=True) + "\n"


def msprobe(path: str, kind: str, steps: Ranges, ranks: Ranges, level: str, names: Sequence[str]) -> Row:
    """Return config.json of PrecisionDebugger, vLLM-Ascend and SGLang.

    Source: msprobe 26.2, config_json_introduct.md, and dumps of mindstudio-probe 26.2.0. `precision` low records Max,
    Min, Mean and Norm, in the type of the tensor, where a norm of float16 may overflow; with high, its PyTorch dump has
    only Max and Min. `risk_level` ALL also records views, casts and constants, in which a fault may lie. Releases
    before 26 ignore both keys. A single card must have no rank.
    """
    what = {"scope": [], "list": [*names], "data_mode": ["all"]}
    where = {"dump_path": path, "rank": _as_items(ranks), "step": _as_items(steps), "level": level, "risk_level": "ALL"}
    if kind == VALUES:
        return {"task": "tensor", **where, "tensor": what}
    summary = {"summary_mode": "md5" if kind == MD5 else "statistics"}
    return {"task": "statistics", **where, "precision": "low", "statistics": {**what, **summary}}


def acl(models: Sequence[str], path: str, kind: str, steps: Ranges, names: Sequence[str]) -> Row:
    """Return acl.json of aclInit and aclmdlSetDump. The model has the name of the loaded file, without its suffix.

    Source: CANN 8.0 to 9.0, "Dump configuration" of the runtime's API reference; `dump_step` has ranges and bars.
    """
    if kind == DETECTION:
        return {"dump": {"dump_path": path, "dump_debug": "on"}}
    layer = {"layer": [*names]} if names else {}
    data = "stats" if kind == STATISTICS else "tensor"
    what = {"dump_mode": "all", "dump_op_switch": "off", "dump_data": data, **dump_step(steps)}
    listed = [{"model_name": name, **layer} for name in models or [""]]
    return {"dump": {"dump_list": listed, "dump_path": path, **what}}


def dump_step(steps: Ranges) -> dict[str, str]:
    """Return `dump_step` of CANN and TensorFlow's adapters; {} for all steps."""
    return {"dump_step": format_ranges(steps)} if steps else {}


def mindspore(net: str, kind: str, steps: Ranges, ranks: Ranges, names: Sequence[str]) -> Row:
    """Return the JSON of MINDSPORE_DUMP_CONFIG, with an empty path: MindSpore then uses MS_DIAGNOSTIC_DATA_PATH.

    Source: MindSpore's dump.md, 2.3 to 2.10. `support_device` are the devices of this server. `op_debug_mode` 3 would
    dump only operators that overflow; statistics count NaN and Inf in every mode of the device.
    """
    devices = _devices(ranks) or [*range(DEVICES)]
    common: Row = {
        "op_debug_mode": 0,
        "dump_mode": 1 if names else 0,
        "path": "",
        "net_name": net,
        "iteration": format_ranges(steps) or "all",
        "saved_data": "tensor" if kind == VALUES else "statistic",
        "input_output": 0,
        "kernels": [*names],
        "support_device": devices,
        "file_format": "npy",
    }
    if kind == STATISTICS:
        common["statistic_category"] = [
            "max",
            "min",
            "avg",
            "nan count",
            "negative inf count",
            "positive inf count",
            "l2norm",
        ]
    if kind == MD5:
        common["statistic_category"] = ["max", "min", "l2norm", "md5"]
    return {"common_dump_settings": common, "e2e_dump_settings": {"enable": True, "trans_flag": True}}


def atb(kind: str, steps: Ranges, ranks: Ranges, names: Sequence[str]) -> Row:
    """Return config.json of the ATB dump module; an execution is a step; `exec_range` is one range around all steps.

    Source: msprobe 26.2, atb_data_dump_instruct.md; from CANN 8.3.RC1 on. `filter_level` 1 keeps a tensor once.
    """
    around = f"{min(low for low, _ in steps)},{max(high for _, high in steps)}" if steps else "all"
    return {
        "task": "statistics" if kind == STATISTICS else "tensor",
        "dump_enable": True,
        "exec_range": around,
        "ids": "",
        "op_name": ",".join(names),
        "save_child": True,
        "device": ",".join(map(str, _devices(ranks))),
        "filter_level": 1,
    }


def _devices(ranks: Ranges) -> list[int]:
    return [one for one in range(2 * DEVICES) if any(low <= one <= high for low, high in ranks)]


def format_ranges(ranges: Ranges) -> str:
    """Return ranges as text, such as "0|3-5"."""
    return "|".join(map(_range, ranges))


def _as_items(ranges: Ranges) -> list[Union[int, str]]:
    return [low if low == high else f"{low}-{high}" for low, high in ranges]


def _range(one: tuple[int, int]) -> str:
    return str(one[0]) if one[0] == one[1] else f"{one[0]}-{one[1]}"


def ranges_of(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return single numbers as ranges."""
    return tuple((number, number) for number in sorted(numbers))
