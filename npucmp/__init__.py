"""npucmp finds the operator that diverged first, whether it bears the error or only propagates it, and the evidence.

    import npucmp

    report = npucmp.compare("npu_dump", "gpu_dump")
    for root in report.roots[:3]:
        print(root.cause.value, root.pair.operator.name, root.because)

Names are loaded on first use (PEP 562), so that `npucmp --help` imports nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

from npucmp.presenter import set_presenter
from npucmp.version import __version__ as __version__

if TYPE_CHECKING:
    from npucmp.comparability.workflow import PrecheckOptions, precheck
    from npucmp.dump.catalogue import formats
    from npucmp.dump.formats import open_runs
    from npucmp.dump.limits import Limits
    from npucmp.errors import NpucmpError
    from npucmp.follow.check import follow_check
    from npucmp.follow.compare import follow_compare
    from npucmp.fusion.workflow import FusionOptions, fusion_diff
    from npucmp.health.workflow import CheckOptions, check
    from npucmp.health.workflow import rules_of as check_rules
    from npucmp.judge.tolerance import Tolerances
    from npucmp.localise.rules import RULES
    from npucmp.measure.dask_executor import Cluster
    from npucmp.model import Report, Run
    from npucmp.overflows.workflow import OverflowOptions, overflow
    from npucmp.plans.plan_result import Planned
    from npucmp.plans.report import write as write_plan
    from npucmp.plans.workflow import PlanOptions, fit, plan
    from npucmp.recompute.extract import ExtractOptions, extract
    from npucmp.recompute.workflow import ReplayOptions, replay
    from npucmp.report import write_format, write_junit, write_reports
    from npucmp.report.columns import columns
    from npucmp.reruns.workflow import rerun_diff
    from npucmp.tickets.workflow import ticket
    from npucmp.tickets.zip import write_ticket
    from npucmp.token_parity.workflow import ParityOptions, parity
    from npucmp.workflows.compare import compare, comparison_plan
    from npucmp.workflows.diff import diff
    from npucmp.workflows.merge import merge
    from npucmp.workflows.options import Options
    from npucmp.workflows.rule import rule
    from npucmp.workflows.show import ShowOptions, load, show

_DOOR = {  # module → its names for users
    "errors": "NpucmpError",
    "model": "Report Run",
    "dump.formats": "open_runs",
    "dump.limits": "Limits",
    "dump.catalogue": "formats",
    "measure.dask_executor": "Cluster",
    "judge.tolerance": "Tolerances",
    "localise.rules": "RULES",
    "plans.plan_result": "Planned",
    "health.workflow": "CheckOptions check check_rules",
    "workflows.compare": "compare comparison_plan",
    "workflows.diff": "diff",
    "recompute.extract": "ExtractOptions extract",
    "follow.check": "follow_check",
    "follow.compare": "follow_compare",
    "fusion.workflow": "FusionOptions fusion_diff",
    "workflows.show": "ShowOptions load show",
    "workflows.merge": "merge",
    "workflows.options": "Options",
    "overflows.workflow": "OverflowOptions overflow",
    "token_parity.workflow": "ParityOptions parity",
    "plans.workflow": "PlanOptions fit plan",
    "comparability.workflow": "PrecheckOptions precheck",
    "recompute.workflow": "ReplayOptions replay",
    "reruns.workflow": "rerun_diff",
    "workflows.rule": "rule",
    "tickets.workflow": "ticket",
    "report": "write_format write_junit write_reports",
    "report.columns": "columns",
    "tickets.zip": "write_ticket",
    "plans.report": "write_plan",
}
_MODULES = {name: module for module, names in _DOOR.items() for name in names.split()}
_INSIDE = {"check_rules": "rules_of", "write_plan": "write"}  # names inside their modules, if different
__all__ = [
    "RULES", "CheckOptions", "Cluster", "ExtractOptions", "FusionOptions", "Limits", "NpucmpError", "Options",
    "OverflowOptions", "ParityOptions", "PlanOptions", "Planned", "PrecheckOptions", "ReplayOptions", "Report",
    "Run", "ShowOptions", "Tolerances", "check", "check_rules", "columns", "compare", "comparison_plan", "diff",
    "extract", "fit", "follow_check", "follow_compare", "formats", "fusion_diff", "load", "merge", "open_runs",
    "overflow", "parity", "plan", "precheck", "replay", "rerun_diff", "rule", "show", "ticket", "write_format",
    "write_junit", "write_plan", "write_reports", "write_ticket",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'npucmp' has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), _INSIDE.get(name, name))
    if isinstance(found, FunctionType):
        found = import_module(f"{__name__}.workflows.python_words").in_python(found, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _present(*result: Any) -> Any:
    """Show a result; report is imported for the first one."""
    return import_module(f"{__name__}.report").present(*result)


set_presenter(_present)
