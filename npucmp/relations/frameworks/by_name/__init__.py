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
