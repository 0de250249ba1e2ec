"""The masks and the lengths of requests that a run recorded among its inputs."""

import numpy as np
import pytest

from npucmp.align.rank_run import Values
from npucmp.align.token_axes import TokenShape
from npucmp.align.token_lengths import recorded_lengths
from npucmp.align.token_tensors import TokenSide
from npucmp.dump.limits import ANYWHERE
from npucmp.model import Operator, Run, TensorRef

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
        (causal(LEFT)[:, :, -1:], LEFT),
        (~np.tril(np.ones((3, 1, 4, 4), bool)), np.ones((3, 4))),  # truth values that are true where masked
        (np.array([[0, 1, 0, 1], [1] * 4, [1] * 4]), None),  # holes
        (np.array([[0, 1, 1, 0], [1] * 4, [1] * 4]), None),  # padding at both ends
        (np.array([[1, 0, 1, 0], [1] * 4, [1] * 4]), None),
        (np.array([[1, 0, 0, 1], [1] * 4, [1] * 4]), None),  # a hole between tokens
        (np.array([[0, 0, 0, 0], [1] * 4, [1] * 4]), None),  # a request without tokens
        (LEFT + 1, None),  # no truth values
        (LEFT[:2], None),
        (causal(LEFT)[:2], None),
    ],
)
def test_masks_of_padding(tmp_path, values, real):
    found = recorded(tmp_path, BATCH, ("attention_mask", values))
    assert found.lengths == () and (found.named is None) is (real is None)
    if real is not None:
        assert found.named.tolist() == (np.asarray(real) != 0).reshape(-1).tolist()


def test_the_mask_that_hides_tokens_of_several_is_taken(tmp_path):
    ones = np.ones(BATCH, np.int64)
    for number, tensors in enumerate([(ones, LEFT), (LEFT, ones), (LEFT, LEFT[:, ::-1])]):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = recorded(folder, BATCH, *(("pad_mask", one) for one in tensors))
        assert found.named.tolist() == (LEFT != 0).reshape(-1).tolist()


def test_masks_need_a_name_and_a_batch(tmp_path):
    assert recorded(tmp_path, BATCH, ("x", LEFT), ("y", LEFT[:, 0])).named is None
    assert recorded(tmp_path, PACKED, ("attention_mask", LEFT)).named is None
    turned = recorded(tmp_path, (4, 3), ("attention_mask", LEFT.T), is_turned=True)
    assert turned.named.tolist() == (LEFT != 0).reshape(-1).tolist()


@pytest.mark.parametrize(
    "shape, values, lengths",
    [
        (PACKED, [5, 4, 3], (5, 4, 3)),
        (PACKED, [0, 5, 9, 12], (5, 4, 3)),
        (PACKED, [0, 5, 9], ()),  # sums to fewer tokens
        (PACKED, [5, 4, 4], ()),
        (PACKED, [12, 0], ()),
        (PACKED, [12], (12,)),
        (PACKED, [5.0, 4.0, 3.0], ()),
        (PACKED, [1] * 13, ()),
        (BATCH, [4, 2, 3], (4, 2, 3)),
        (BATCH, [3, 2, 3], ()),  # none fills the lanes
        (BATCH, [4, 2], ()),
        (BATCH, [0, 3, 5, 9], (3, 2, 4)),
        (BATCH, [0, 3, 3, 9], ()),
        (BATCH, [0, 5, 9, 13], ()),
    ],
)
def test_lengths_and_cumulative_lengths(tmp_path, shape, values, lengths):
    found = recorded(tmp_path, shape, ("lengths", values), ("again", values))
    assert found.lengths == ((lengths,) if lengths else ()) and found.named is None
