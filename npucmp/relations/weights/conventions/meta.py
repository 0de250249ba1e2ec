"""Names of Meta's Llama checkpoints, whose rotary embedding turns neighbouring rows.

Source: meta-llama/llama, llama/model.py; huggingface/transformers, convert_llama_weights_to_hf.py.
"""

from __future__ import annotations

from npucmp.relations.weights.convention import Convention

CONVENTION = Convention(
    "Meta",
    (
        (r"tok_embeddings\.@", "embed"),
        (r"^norm\.@", "nf"),
        (r"^output\.@", "head"),
        (r"attention_norm\.@", "n1"),
        (r"ffn_norm\.@", "n2"),
        (r"attention\.wq\.@", "q"),
        (r"attention\.wk\.@", "k"),
        (r"attention\.wv\.@", "v"),
        (r"attention\.wo\.@", "o"),
        (r"feed_forward\.w1\.@", "gate"),
        (r"feed_forward\.w3\.@", "up"),
        (r"feed_forward\.w2\.@", "down"),
    ),
    pairs_rope=True,
)
