"""The sentence about a wrong parameter names what it holds."""

import numpy as np
import pytest

import npucmp
from npucmp.localise import weight_faults
from tests.corpus.weights import files
from tests.corpus.weights.files import Stored

random = np.random.default_rng(8)
W, SQUARE, BIAS = random.standard_normal((6, 4)), random.standard_normal((4, 4)), random.standard_normal(5)
COLUMN = random.standard_normal((6, 1))
NAME = "model.layers.0.mlp.up_proj.weight"


def changed(values, at, factor=3.0):
    found = values.copy()
    found[at] *= factor
    return found


def mixed(values):
    """Half of the elements are others, in all rows and columns."""
    return values + np.where(np.indices(values.shape).sum(0) % 2, 0.5, 0.0)


FAULTS = [
    (W, changed(W, (3, 2)), "one element differs, in row 3"),
    (W, changed(W, (slice(None), slice(1, 3)), np.linspace(2, 3, 12).reshape(6, 2)), "columns 1 to 2 differ"),
    (W, changed(W, (slice(2, 5), slice(1, 3)), np.linspace(2, 3, 6).reshape(3, 2)), "3 of 6 rows differ, 2 to 4"),
    (W, changed(W, (slice(2, 5),), np.linspace(2, 3, 12).reshape(3, 4)), "3 of 6 rows differ, 2 to 4"),
    (BIAS, changed(BIAS, slice(1, 3), np.array([2.0, 3.0])), "2 of 5 elements differ, 1 to 2"),
    (BIAS, changed(BIAS, 4), "one element differs, in row 4"),
    (W, mixed(W), "its values are others"),
    (W, changed(W, 2, 0.0), "row 2 is zero"),
    (W, changed(W, slice(2, 4), 0.0), "rows 2 to 3 are zero"),
    (W, changed(W, (slice(None), 3), 0.0), "column 3 is zero"),
    (BIAS, changed(BIAS, 3, 0.0), "element 3 is zero"),
    (W, W * 0.0, "all its elements are zero"),
    (W, W * 1.5, "it is 1.5 times the golden"),
    (W, W[[0, 2, 1, 3, 4, 5]], "the golden's rows 1 to 2 stand in another order"),
    (W, W[:, [0, 1, 3, 2]], "the golden's columns 2 to 3 stand in another order"),
    (W, W.reshape(-1)[::-1].reshape(W.shape), "it holds the same numbers in another order"),
    (BIAS, BIAS[::-1], "it holds the same numbers in another order"),
    (COLUMN, COLUMN[::-1], "it holds the same numbers in another order"),
    (COLUMN.T, COLUMN.T[:, ::-1], "it holds the same numbers in another order"),
    (W, changed(W, (3, 2), np.nan), "one element differs, in row 3"),
    (SQUARE, SQUARE.T, "it is transposed"),
    (W, W.T, "it is transposed: shape [4, 6] against [6, 4]"),
    (W, W[:5], "shape [5, 4] against [6, 4]"),
]


@pytest.mark.parametrize("golden, target, words", FAULTS, ids=[words for *_, words in FAULTS])
def test_the_sentence_about_a_wrong_parameter(tmp_path, golden, target, words):
    for folder, values in (("t", target), ("g", golden)):
        (tmp_path / folder).mkdir()
        files.safetensors(
            tmp_path / folder / "model.safetensors", {NAME: Stored(np.ascontiguousarray(values), "float64")}
        )
    (root,) = npucmp.compare(tmp_path / "t", tmp_path / "g").roots
    assert words in root.because


@pytest.mark.parametrize(
    "bound, elements, words",
    [
        ("WHOLE", 24, "one element differs, in row 3"),
        ("WHOLE", 23, "its values are others"),
        ("TOTAL", 24, "one element differs, in row 3"),
        ("TOTAL", 23, "its values are others"),
    ],
)
def test_a_parameter_that_is_too_large_to_be_read_whole_holds_other_values(
    tmp_path, monkeypatch, bound, elements, words
):
    monkeypatch.setattr(weight_faults, bound, elements)
    for folder, values in (("t", changed(W, (3, 2))), ("g", W)):
        (tmp_path / folder).mkdir()
        files.safetensors(tmp_path / folder / "model.safetensors", {NAME: Stored(values, "float64")})
    (root,) = npucmp.compare(tmp_path / "t", tmp_path / "g").roots
    assert words in root.because


@pytest.mark.parametrize("prefix, words", [("", ""), ("module.", "the target holds it in module.")])
def test_the_tensor_of_the_target_is_named_if_it_has_another_name(tmp_path, prefix, words):
    for folder, name, values in (("t", prefix + NAME, changed(W, (3, 2))), ("g", NAME, W)):
        (tmp_path / folder).mkdir()
        files.safetensors(tmp_path / folder / "model.safetensors", {name: Stored(values, "float64")})
    (root,) = npucmp.compare(tmp_path / "t", tmp_path / "g").roots
    assert root.pair.operator.name == NAME and ("the target holds it in" in root.because) is bool(prefix)
    assert words in root.because
