"""The calls that msprobe left out of a dump: by the config.json of the dump, or because none of them is recorded.

Source: mindstudio-probe 26.2.0, api_risk_level.py and data_collector.py. At level L1 and mix, `risk_level` decides
which calls of PyTorch are recorded unless `list` or `scope` selects them: without ALL, no call of LOW_RISK is. Earlier
releases have no `risk_level` and record all calls.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Mapping

from npucmp.model import Run

CONFIG = "config.json"
_BYTES = 1 << 20  # limit of a config.json that is read
_ABOVE = 3  # folders above dump.json that may hold it: rank, step, dump, and the folder of the plan
LOW_RISK = frozenset(
    "squeeze unsqueeze reshape reshape_as view view_as flatten unflatten expand expand_as repeat "
    "repeat_interleave tile transpose permute moveaxis movedim swapaxes swapdims chunk unsafe_chunk split "
    "split_with_sizes unsafe_split unsafe_split_with_sizes tensor_split hsplit vsplit dsplit unbind stack cat "
    "concat concatenate hstack vstack dstack column_stack row_stack align_as align_to atleast_1d atleast_2d "
    "atleast_3d ravel clamp unfold type_as to float double int long half bfloat16 byte char bool cfloat numpy "
    "empty empty_like zeros zeros_like ones ones_like full full_like arange linspace logspace eye identity diag "
    "diagflat diag_embed triu tril triu_indices tril_indices clone __bool__ stride".split()
)
MANY = 30  # calls; a fifth of the calls of a transformer are of LOW_RISK, so none in 30 has a chance of 0.1 %


def config_of(run: Run) -> Mapping[str, Any]:
    """Return the config.json of a dump, which lies in the folder of the dump or above it; {} if there is none."""
    folder = Path(run.path).absolute().parent
    for place in (folder, *[*folder.parents][:_ABOVE]):  # Python 3.9 has no slices of parents
        file = place / CONFIG
        with suppress(OSError, ValueError, RecursionError):
            if file.is_file() and file.stat().st_size <= _BYTES:
                found = json.loads(file.read_bytes())
                if isinstance(found, dict) and "task" in found and _leads_to(found.get("dump_path"), folder):
                    return found
    return {}


def _leads_to(dump_path: Any, folder: Path) -> bool:
    """Return whether a dump is below a path that may be relative to another folder, or was written elsewhere."""
    return isinstance(dump_path, str) and Path(dump_path).name in ("", *folder.parts)


def selected_calls(run: Run) -> str:
    """Return the words on the `list` or `scope` of config.json that selects operators, "" if none does."""
    config = config_of(run) if run.format == "msprobe" else {}
    part = config.get(str(config.get("task")))
    for key in ("list", "scope"):
        names = part.get(key) if isinstance(part, dict) else None
        if isinstance(names, list) and names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            return f'"{key}" in config.json selects operators ({names[0]!s:.60}{more}): the others have no records'
    return ""


def omitted_calls(run: Run, least: int = 1) -> str:
    """Return the words on calls that `risk_level` leaves out; "" if none is, or nothing is known. Without a
    config.json, the absence of every call of LOW_RISK among at least `least` calls shows it."""
    if run.format != "msprobe" or run.detail.startswith("mindspore") or selected_calls(run):
        return ""
    calls = [operator.op_type for operator in run.operators if operator.phase == "forward" and not operator.path]
    level = config_of(run).get("risk_level")
    stated = isinstance(level, str)
    if level == "ALL" or not LOW_RISK.isdisjoint(calls) or len(calls) < (1 if stated else least):
        return ""
    words = "no view, cast or constant operator is recorded (arange, cat, to, transpose …)"
    return f'{words}: "risk_level" in config.json is "{level:.20}"' if stated else words
