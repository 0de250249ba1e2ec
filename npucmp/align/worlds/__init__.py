"""Two runs of one network in the words of two worlds: MindSpore and PyTorch, vLLM and transformers, ATB and torch.

Operators are lined up by what is the same in all worlds: the path of a module, what a function computes and within
which module, the values of weights, and the order between those. A pair is made where that leaves one way, or where
values tell; what stays open has no partner, and its note names the candidates.

    alignment.py  the order in which operators are matched
    spelling.py   names → path, what it computes, phase
    vendor.py     msprobe's own files of partners
    parts.py      fused projections and their parts, by views
    weights.py    operators by the values of their weights, where names tell nothing
    partners.py   slots, names of parameters and shapes of two operators that belong together
    samples.py    samples of tensors, and tensors in another shape
"""

from __future__ import annotations

from npucmp.align.worlds.spelling import ATB, has_parts, world_of
from npucmp.align.worlds.vendor import Vendor
from npucmp.model import Run


def are_apart(target: Run, golden: Run, vendor: Vendor = Vendor()) -> bool:
    """Whether the names of two runs are those of two worlds."""
    worlds = world_of(target), world_of(golden)
    if vendor != Vendor() or (worlds[0] != worlds[1] and (all(worlds) or ATB in worlds)):
        return True
    if not all(worlds):
        return False
    left, right = ({tuple(one.path.split(".")) for one in run.operators if one.path} for run in (target, golden))
    return has_parts(left, right)
