"""npucmp: which operator diverged first, does it bear the error or only pass it on, and what is the evidence.

    import npucmp
    report = npucmp.compare("npu_dump", "gpu_dump")
    for root in report.roots[:3]:
        print(root.cause.value, root.pair.operator.name, root.evidence)

Names are loaded when first used (PEP 562), so that `npucmp --help` imports nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from npucmp.align import align, pairs
    from npucmp.errors import NpucmpError
    from npucmp.formats import open_runs
    from npucmp.judge import Rules, judge
    from npucmp.measure import measure, measure_pairs
    from npucmp.model import Report, Run
    from npucmp.recipes.compare import Options, compare
    from npucmp.recipes.fusion_diff import FusionOptions, fusion_diff
    from npucmp.recipes.overflow import OverflowOptions, overflow
    from npucmp.recipes.rerun_diff import rerun_diff
    from npucmp.report import write_reports
    from npucmp.roots import find_roots

_DOOR = {
    "align": "npucmp.align",
    "pairs": "npucmp.align",
    "NpucmpError": "npucmp.errors",
    "open_runs": "npucmp.formats",
    "Rules": "npucmp.judge",
    "judge": "npucmp.judge",
    "measure": "npucmp.measure",
    "measure_pairs": "npucmp.measure",
    "Report": "npucmp.model",
    "Run": "npucmp.model",
    "Options": "npucmp.recipes.compare",
    "compare": "npucmp.recipes.compare",
    "FusionOptions": "npucmp.recipes.fusion_diff",
    "fusion_diff": "npucmp.recipes.fusion_diff",
    "OverflowOptions": "npucmp.recipes.overflow",
    "overflow": "npucmp.recipes.overflow",
    "rerun_diff": "npucmp.recipes.rerun_diff",
    "write_reports": "npucmp.report",
    "find_roots": "npucmp.roots",
}
__all__ = [
    "FusionOptions", "NpucmpError", "Options", "OverflowOptions", "Report", "Rules", "Run", "align", "compare",
    "find_roots", "fusion_diff", "judge", "measure", "measure_pairs", "open_runs", "overflow", "pairs",
    "rerun_diff", "write_reports",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _DOOR:
        raise AttributeError(f"module 'npucmp' has no attribute {name!r}")
    found = getattr(import_module(_DOOR[name]), name)
    globals()[name] = found  # a submodule of that name (align, judge, measure) must not hide it on the next use
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
