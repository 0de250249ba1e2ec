"""Pairs of a run on several ranks and the same network on one: layouts, planted faults, and the score of npucmp.

    layout       sizes of a layout, groups of ranks, the part of a rank
    collectives  what ranks do together, with the records that a dump tool makes
    networks     a GPT as Megatron splits it, computed rank by rank
    faults       the kinds of fault, and what is right to say of each
    cases        pairs drawn from seeds, on disk
    score        `python -m tests.corpus.parallel`: what npucmp says of them

Truths are planted: nothing here imports npucmp but score.
"""
