"""Real dumps of parallel runs: torch with gloo, a process for each rank, recorded by msprobe.

    record    processes, msprobe's configuration, the names of what was computed where
    regions   collectives with their gradients, as Megatron has them
    layers    modules of the network, split by tensor, sequence, context and vocabulary
    experts   mixtures of experts, by all-reduce and by all-to-all
    training  stages, micro batches, reduction of gradients, the optimizer
    cases     pairs drawn from seeds

The cases, faults and truths are those of tests/corpus/parallel. It needs torch and mindstudio-probe beside the test
extra: `python -m tests.corpus.parallel.gloo SEED --layouts tp2,pp2`.
"""
