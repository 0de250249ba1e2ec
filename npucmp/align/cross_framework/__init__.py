"""Alignment of two runs of one network from two frameworks: MindSpore and PyTorch, vLLM and transformers, ATB and
torch.

Operators are aligned by properties that all frameworks share: the path of a module, the computation of a function and
its module, the values of weights, and the order between matches. A pair is made if only one choice is left, or if
values decide. Otherwise the operator has no partner, and its note names the candidates.

    alignment.py        the order in which operators are matched
    aliases.py          names → path, computation, phase
    msprobe_mapping.py  msprobe's own mapping files
    weight_match.py     operators by the values of their weights, and fused projections and their parts, by views
    slots.py            slots, parameter names, samples and shapes of two operators that belong together
"""

from __future__ import annotations

from npucmp.align.cross_framework.aliases import ATB, framework_of, has_parts
from npucmp.align.cross_framework.msprobe_mapping import MsprobeMapping
from npucmp.model import Run


def differ_in_framework(target: Run, golden: Run, vendor: MsprobeMapping = MsprobeMapping()) -> bool:
    """Return whether the names of two runs are those of two frameworks."""
    frameworks = framework_of(target), framework_of(golden)
    if vendor != MsprobeMapping() or (frameworks[0] != frameworks[1] and (all(frameworks) or ATB in frameworks)):
        return True
    if not all(frameworks):
        return False
    left, right = ({tuple(one.path.split(".")) for one in run.operators if one.path} for run in (target, golden))
    return has_parts(left, right)
