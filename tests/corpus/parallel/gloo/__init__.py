"""Real dumps of parallel runs: torch with gloo, a process for each rank, recorded by msprobe.

    styles    how a network is written, and layouts beside those of the numpy corpus
    place     a rank of a case: layout, groups, weights, the fault
    record    processes, msprobe's configuration, the names of what was computed where
    regions   collectives with their gradients, as Megatron has them
    layers    modules of the network, split by tensor, sequence, context and vocabulary
    experts   mixtures of experts, by all-reduce and by all-to-all
    sharded   optimizer state and parameters in flat parts: ZeRO-1, FSDP
    head      the last norm, the logits and the loss
    training  stages, micro batches, reduction of gradients, the optimizer
    faults    faults that the numpy corpus lacks
    cases     pairs drawn from seeds

It needs torch and mindstudio-probe beside the test extra: `python -m tests.corpus.parallel.gloo SEED --layouts tp2,pp2
--keep FOLDER`. No test of the default suite imports it. With `--base float64`, each clean layout must give the loss of
one rank within 1e-12.
"""
