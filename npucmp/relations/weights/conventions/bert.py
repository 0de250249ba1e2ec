"""Names of BERT and RoBERTa.

Source: huggingface/transformers, models/bert.
"""

from __future__ import annotations

from npucmp.relations.weights.convention import Convention

CONVENTION = Convention(
    "BERT",
    (
        (r"embeddings\.word_embeddings\.@", "embed"),
        (r"embeddings\.position_embeddings\.@", "pos"),
        (r"embeddings\.token_type_embeddings\.@", "types"),
        (r"embeddings\.LayerNorm\.@", "n0"),
        (r"attention\.self\.query\.@", "q"),
        (r"attention\.self\.key\.@", "k"),
        (r"attention\.self\.value\.@", "v"),
        (r"attention\.output\.dense\.@", "o"),
        (r"attention\.output\.LayerNorm\.@", "n1"),
        (r"intermediate\.dense\.@", "fc"),
        (r"output\.dense\.@", "fc2"),
        (r"output\.LayerNorm\.@", "n2"),
        (r"pooler\.dense\.@", "pooler"),
        (r"cls\.predictions\.decoder\.weight", "head"),
    ),
)
