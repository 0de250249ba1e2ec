"""Pairs of runs of one network whose numbers are arranged differently in two ways at once.

    values        tensors of all tokens, with a part for each rank of tensor parallelism; records of operators
    arrangements  requests, and the rows of each step and rank: padded, packed, chunks, decoding, replicas, zigzag
    forward       the operators that the networks share, computed rank by rank, with collectives and faults
    networks      a LLaMA-like and a GPT-2-like decoder
    faults        the kinds of fault, their draw, and the operators that are right to name first
    dialects      names of modules and functions: transformers, parallel engines, vLLM, MindFormers
    dumps         dumps in the form of msprobe and of MindSpore's kernels
    decoders      the combinations that decoders have
    images        NHWC, equal names, another batch
    checkpoints   weights of ranks on both sides in two conventions
    cases         the cases of seeds
    score         `python -m tests.corpus.composed`: what npucmp answers, graded

Truths are planted: nothing here imports npucmp but score.
"""
