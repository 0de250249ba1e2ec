"""Names of GPT-2. Its Conv1D stores matrices as (in, out), nanoGPT and vLLM as (out, in).

Source: huggingface/transformers, models/gpt2.
"""

from __future__ import annotations

from npucmp.relations.weights.convention import Convention

CONVENTION = Convention(
    "GPT-2",
    (
        (r"wte\.@", "embed"),
        (r"wpe\.@", "pos"),
        (r"ln_f\.@", "nf"),
        (r"ln_1\.@", "n1"),
        (r"ln_2\.@", "n2"),
        (r"attn\.c_attn\.@", "qkv"),
        (r"attn\.c_proj\.@", "o"),
        (r"mlp\.c_fc\.@", "fc"),
        (r"mlp\.c_proj\.@", "fc2"),
    ),
    turned=True,
)
