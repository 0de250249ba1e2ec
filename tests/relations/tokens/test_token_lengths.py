"""The masks and the lengths of requests that a run recorded among its inputs."""

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.model import Operator, Run, TensorRef
from npucmp.relations.held_values import Values
from npucmp.relations.tokens.token_axes import TokenShape
from npucmp.relations.tokens.token_lengths import recorded_lengths
from npucmp.relations.tokens.token_tensors import TokenSide

BATCH, PACKED = (3, 4), (1, 12)  # of tokens
LEFT = np.array([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]])
LOW = -65504.0


def causal(real, lowest=LOW):
    """An additive mask of (batch, 1, sequence, sequence) in which a token sees itself and those before it."""
    sees = np.tril(np.ones((4, 4), bool)) & (real != 0)[:, None, :]
    return np.where(sees, 0.0, lowest)[:, None].astype(np.float32)


def recorded(folder, shape, *tensors, is_turned=False):
    refs = []
    for number, (label, values) in enumerate(tensors):
        values, file = np.asarray(values), str(folder / f"{number}.npy")
        np.save(file, values)
        refs.append(TensorRef(f"input:{number}", values.dtype.name, values.shape, file, "npy", label=label))
    run = Run("dump", "msprobe", (Operator("embedding.0", "embedding", "embedding", "forward", 0, tuple(refs)),))
    return recorded_lengths(TokenSide((run,), (TokenShape(shape, is_turned),), Values(ANYWHERE)))


@pytest.mark.parametrize(
    "values, real",
    [
        (LEFT, LEFT),
        (LEFT.astype(bool), LEFT),
        (LEFT[:, ::-1], LEFT[:, ::-1]),
        (causal(LEFT), LEFT),
        (causal(LEFT, -1.0), LEFT),
        (causal(LEFT, -0.5), np.ones((3, 4))),  # a bias
        (causal(LEFT)[:, :, -1:], LEFT),
        (LEFT[:, None, None], LEFT),  # integers: 1 is a token
        (LEFT[:, None, None] * np.tril(np.ones((4, 4), int)), LEFT),
        (LEFT[:, None, None].astype(np.float32), np.ones((3, 4))),  # floats are additive
        (~np.tril(np.ones((3, 1, 4, 4), bool)), np.ones((3, 4))),  # truth values that are true where masked
        (np.array([[0, 1, 0, 1], [1] * 4, [1] * 4]), None),  # holes
        (np.array([[0, 1, 1, 0], [1] * 4, [1] * 4]), None),  # padding at both ends
        (np.array([[1, 0, 1, 0], [1] * 4, [1] * 4]), None),
        (np.array([[1, 0, 0, 1], [1] * 4, [1] * 4]), None),  # a hole between tokens
        (np.array([[0, 0, 0, 0], [1] * 4, [1] * 4]), None),  # a request without tokens
        (LEFT + 1, None),  # no truth values
        (np.array([[0, 0, 1, 2], [1] * 4, [1] * 4]), None),
        (causal(LEFT)[:, :, :2], None),
        (np.array([[1, 1, 0]] * 4), None),  # lanes of three tokens
        (LEFT[:2], None),
        (causal(LEFT)[:2], None),
    ],
)
def test_masks_of_padding(tmp_path, values, real):
    found = recorded(tmp_path, BATCH, ("attention_mask", values))
    assert found.lengths == () and (found.named is None) is (real is None)
    if real is not None:
        assert found.named.tolist() == (np.asarray(real) != 0).reshape(-1).tolist()
