"""Networks on which nobody tuned the comparison across parallel layouts: real runs of torch with gloo and msprobe.

    world      a rank: its place in the layout, its groups, the fault; a run of all ranks
    serving    a language model written with classes as vLLM has them: tensor and expert parallel
    megatron   a training step as Megatron has it: sequence parallel, ZeRO-1, pipeline, micro batches
    vision     a vision transformer: uneven batches, ring attention, all-to-all attention, parameters in flat parts
    split_convolutions  a convolution network: synchronised batch norm, split channels, split rows, uneven batches
    mixtures    a DeepSeek-like model at prefill: latent attention, experts with tokens gathered or exchanged
    llama       a training step: flat optimizer over tensor parallel, stages by turns, parts of a sequence, ZeRO-3
    detection   windows and a decoder of queries in training: uneven batches, split heads, heads exchanged for rows
    unet        a denoising network: synchronised norms, halos over strides, channels gathered
    gemma       prefill and decoding out of a paged cache: norms of heads, capped scores, experts
    t5          an encoder and a decoder in training: main gradients, a loss scale, a flat optimizer, a stage for each
    clip        images and texts in training: features of all ranks in the loss, split heads
    convnext    grouped and depthwise convolutions in training: batch norm over ranks, split groups, split rows
    regions     what the last eight do between ranks

`python -m tests.corpus.parallel_strangers OUT [--only GLOB]` writes all pairs into OUT and OUT/manifest.json, which
`check_parallel.py OUT OUT/manifest.json` scores. The true operators of a fault are those that one card ran at the place
where the fault was planted. `--base float64` checks each clean layout instead: all figures of one card within 1e-9.

It needs torch and mindstudio-probe beside the test extra; no test of the default suite imports it.
"""
