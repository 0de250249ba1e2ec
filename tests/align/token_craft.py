"""Small runs that compute the same tokens in layouts of their own."""

from __future__ import annotations

import numpy as np

from npucmp.dump.limits import ANYWHERE
from npucmp.model import Run
from npucmp.relations.held_values import Values
from npucmp.relations.tokens.token_axes import TokenShape
from npucmp.relations.tokens.token_evidence import TokenEvidence
from npucmp.relations.tokens.token_tensors import TensorPair, TokenSide
from tests.align.craft import run_with_values

WIDTHS = {"embedding": 8, "linear": 6, "gelu": 6, "output": 4}


def values_of(count=12, seed=0, dtype=np.float32):
    """Values of each token and, in the last row, of padding: by operator; and ids, of which 0 is padding."""
    generator = np.random.default_rng(seed)
    found = {name: generator.standard_normal((count + 1, width)).astype(dtype) for name, width in WIDTHS.items()}
    return {**found, "ids": np.array([*range(count, 0, -1), 0])}


def step(folder, places, values=None, ids=True, more=()):
    """A step with these tokens by place; -1 is padding."""
    values, places = values or values_of(), np.asarray(places)
    found = {name: rows[places] for name, rows in values.items()}
    calls = [("Functional.embedding.0.forward", [found["ids"]] if ids else [], [found["embedding"]])]
    reads = "embedding"
    for name in ("linear", "gelu", "output"):
        calls.append((f"Functional.{name}.0.forward", [found[reads]], [found[name]]))
        reads = name
    return run_with_values(folder, [*calls, *more])


def side(*runs):
    return TokenSide.of(runs, ANYWHERE)


def sides(folder, target, golden, **more):
    """Both sides: the golden of one step, the target of one or, as a list, several."""
    steps = target if isinstance(target, list) else [target]
    left = [step(folder / f"target {at}", one, **more) for at, one in enumerate(steps)]
    return side(*left), side(step(folder / "golden", golden, **more))


def bare_side(*shapes, turned=False):
    """A side of these shapes of tokens without tensors."""
    found = tuple(TokenShape(one, turned) for one in shapes)
    return TokenSide((Run("dump", "msprobe", ()),) * len(shapes), found, Values(ANYWHERE))


FIRST = TensorPair(("op", 0, "output:0"), ("op", 0, "output:0"), True, True, 8)


def evidence(pairs, classes, is_ids=True, tensors=8):
    """Evidence: {(row, token): number of tensors that agree}, and the ids of the golden's tokens."""
    rows, tokens = (np.array([one[at] for one in pairs], np.int64) for at in (0, 1))
    counts = np.array([*pairs.values()], np.int64)
    return TokenEvidence(
        rows, tokens, counts, tensors, FIRST, is_ids, np.ravel(classes), np.zeros(np.size(classes), bool)
    )
