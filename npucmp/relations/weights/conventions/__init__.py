"""Conventions of names of parameters, one module each. A name belongs to the first convention that has its suffix."""

from __future__ import annotations

from npucmp.relations.weights.conventions import bert, gpt2, huggingface, megatron, meta, vllm

CONVENTIONS = (
    megatron.CONVENTION,
    vllm.CONVENTION,
    gpt2.CONVENTION,
    bert.CONVENTION,
    meta.CONVENTION,
    huggingface.CONVENTION,
)
