"""npucmp: which operator diverged first, does it bear the error or only pass it on, and what is the evidence.

    import npucmp
    report = npucmp.compare("npu_dump", "gpu_dump")
    for root in report.roots[:3]:
        print(root.cause.value, root.pair.operator.name, root.because)

Names are loaded when first used (PEP 562), so that `npucmp --help` imports nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from npucmp.dump.formats import open_runs
    from npucmp.errors import NpucmpError
    from npucmp.judge.tolerances import Tolerances
    from npucmp.measure.cluster import Cluster
    from npucmp.model import Report, Run
    from npucmp.plan.planned import Planned
    from npucmp.report import write_reports
    from npucmp.report.plan import write as write_plan
    from npucmp.workflows.check import CheckOptions
    from npucmp.workflows.check import check as check_dump
    from npucmp.workflows.compare import compare
    from npucmp.workflows.fusion_diff import FusionOptions, fusion_diff
    from npucmp.workflows.load import load
    from npucmp.workflows.options import Options
    from npucmp.workflows.overflow import OverflowOptions, overflow
    from npucmp.workflows.plan import PlanOptions
    from npucmp.workflows.plan import plan as plan_dump
    from npucmp.workflows.precheck import PrecheckOptions
    from npucmp.workflows.precheck import precheck as precheck_dumps
    from npucmp.workflows.replay import ReplayOptions
    from npucmp.workflows.replay import replay as replay_dump
    from npucmp.workflows.rerun_diff import rerun_diff

_DOOR = {
    "NpucmpError": "npucmp.errors",
    "open_runs": "npucmp.dump.formats",
    "Cluster": "npucmp.measure.cluster",
    "Tolerances": "npucmp.judge.tolerances",
    "Report": "npucmp.model",
    "Run": "npucmp.model",
    "CheckOptions": "npucmp.workflows.check",
    "check_dump": "npucmp.workflows.check",
    "Options": "npucmp.workflows.options",
    "compare": "npucmp.workflows.compare",
    "FusionOptions": "npucmp.workflows.fusion_diff",
    "fusion_diff": "npucmp.workflows.fusion_diff",
    "OverflowOptions": "npucmp.workflows.overflow",
    "load": "npucmp.workflows.load",
    "overflow": "npucmp.workflows.overflow",
    "rerun_diff": "npucmp.workflows.rerun_diff",
    "PlanOptions": "npucmp.workflows.plan",
    "Planned": "npucmp.plan.planned",
    "plan_dump": "npucmp.workflows.plan",
    "write_plan": "npucmp.report.plan",
    "PrecheckOptions": "npucmp.workflows.precheck",
    "precheck_dumps": "npucmp.workflows.precheck",
    "ReplayOptions": "npucmp.workflows.replay",
    "replay_dump": "npucmp.workflows.replay",
    "write_reports": "npucmp.report",
}
_INSIDE = {  # as what they are called there: packages have the names of these commands
    "check_dump": "check",
    "plan_dump": "plan",
    "write_plan": "write",
    "precheck_dumps": "precheck",
    "replay_dump": "replay",
}
__all__ = [
    "CheckOptions", "Cluster", "FusionOptions", "NpucmpError", "Options", "OverflowOptions", "PlanOptions", "Planned",
    "PrecheckOptions", "ReplayOptions", "Report", "Run", "Tolerances", "check_dump", "compare", "fusion_diff",
    "load", "open_runs", "overflow", "plan_dump", "precheck_dumps", "replay_dump", "rerun_diff", "write_plan",
    "write_reports",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _DOOR:
        raise AttributeError(f"module 'npucmp' has no attribute {name!r}")
    found = getattr(import_module(_DOOR[name]), _INSIDE.get(name, name))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
