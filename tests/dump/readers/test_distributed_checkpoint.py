"""torch.distributed.checkpoint: chunks fill their tensor, or cost one row with the reason; a false table is refused."""

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE, Limits, ReadContext
from npucmp.dump.readers.distributed_checkpoint import distributed_tensors
from npucmp.dump.readers.values import blocks
from npucmp.errors import DumpError
from tests.corpus.weights.files import Stored, distributed, pickled_object, pickled_text

A = np.arange(24, dtype=np.float32).reshape(4, 6)


def read(folder, context=ANYWHERE):
    return dict(distributed_tensors(str(folder), context))


def value_of(tensor):
    return np.concatenate([*blocks(tensor.payload)]).reshape(tensor.shape)


def cut(*boxes):
    """Chunks of A: (first row, last row, first column, last column)."""
    return [((top, left), Stored(A[top:bottom, left:right])) for top, bottom, left, right in boxes]


@pytest.mark.parametrize(
    "chunks",
    [
        cut((0, 4, 0, 6)),
        cut((2, 4, 0, 6), (0, 2, 0, 6)),
        cut((0, 4, 0, 2), (0, 4, 2, 6)),
        cut((0, 2, 0, 1), (0, 2, 1, 6), (2, 4, 0, 4), (2, 4, 4, 6)),
        cut((0, 4, 0, 6), (4, 4, 0, 6)),  # a rank that holds nothing of it
    ],
)
def test_chunks_fill_a_tensor(tmp_path, chunks):
    distributed(tmp_path, {"state_dict.model.w": chunks, "none": [((), Stored(np.float32(3.0)))]},
                {"state_dict.model.w": A.shape, "none": ()})  # fmt: skip
    found = read(tmp_path)
    assert [*found] == ["model.w", "none"]
    np.testing.assert_array_equal(value_of(found["model.w"]), A)
    assert found["none"].shape == () and value_of(found["none"]) == 3.0


@pytest.mark.parametrize(
    "chunks, size, why",
    [
        (cut((0, 3, 0, 6)), (4, 6), "its chunks have the shape [3, 6], the table states [4, 6]"),
        (cut((1, 4, 0, 6)), (4, 6), "a gap at 0 of axis 0"),
        (cut((0, 1, 0, 6), (2, 4, 0, 6)), (4, 6), "a gap at 1 of axis 0"),
        (cut((0, 4, 0, 2), (0, 4, 3, 6)), (4, 6), "a gap at 2 of axis 1"),
        (cut((0, 4, 0, 6), (0, 4, 0, 6)), (4, 6), "chunks that overlap"),
        (cut((0, 2, 0, 6), (2, 4, 0, 5)), (4, 6), "unequal shapes side by side along axis 0"),
        (cut((0, 4, 0, 2), (0, 3, 2, 6)), (4, 6), "unequal shapes side by side along axis 1"),
        ([*cut((0, 2, 0, 6)), ((2,), Stored(A[2]))], (4, 6), "unequal numbers of axes"),
        ([], (4, 6), "no chunk holds it"),
        (cut((0, 4, 0, 6)), None, "the table states no size of it"),
    ],
)
def test_chunks_that_do_not_fill_it_cost_one_row(tmp_path, chunks, size, why):
    sizes = {"w": size} if size is not None else {}
    whole = {"b": [((0,), Stored(A[0]))]}
    distributed(tmp_path, {"w": chunks, **whole}, {**sizes, "b": (6,)})
    found = read(tmp_path)
    assert found["w"].payload is None and not found["w"].shape
    assert why in found["w"].problem
    np.testing.assert_array_equal(value_of(found["b"]), A[0])


def test_a_cut_file_costs_its_tensors(tmp_path):
    distributed(tmp_path, {"a": cut((0, 4, 0, 6)), "b": cut((0, 4, 0, 6))}, {"a": A.shape, "b": A.shape})
    file = tmp_path / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1])
    found = read(tmp_path)
    assert "ended early" in found["b"].problem and found["b"].file == str(file)
    np.testing.assert_array_equal(value_of(found["a"]), A)


def test_layers_that_are_stacked_come_one_after_another(tmp_path):
    names = {"decoder.layers.mlp.w": (4, 6), "decoder.layers.scale": ()}
    distributed(tmp_path, {"decoder.layers.mlp.w": cut((0, 4, 0, 6)),
                           "decoder.layers.scale": [((), Stored(np.float32(1.0)))]}, names)  # fmt: skip
    found = read(tmp_path)
    assert [*found] == [f"decoder.layers.{layer}.mlp.w" for layer in range(4)] + ["decoder.layers.scale"]
    for layer in range(4):
        one = found[f"decoder.layers.{layer}.mlp.w"]
        assert one.label == f"decoder.layers.{layer}.mlp.w" and one.shape == (6,)
        np.testing.assert_array_equal(value_of(one), A[layer])


KEY = {"fqn": pickled_text("w"), "offset": b"N", "index": b"K\x00"}
PLACE = {"relative_path": pickled_text("__0_0.distcp"), "offset": b"K\x00", "length": b"K\x08"}


def table(folder, storage, sizes=b"}"):
    """A table with these pickled entries."""
    state = {"state_dict_metadata": sizes, "storage_data": storage}
    (folder / ".metadata").write_bytes(b"\x80\x02" + pickled_object("Metadata", state) + b".")
    (folder / "__0_0.distcp").write_bytes(bytes(8))


def entry(key=None, place=None):
    return b"}(" + pickled_object("MetadataIndex", {**KEY, **(key or {})}) + pickled_object(
        "_StorageInfo", {**PLACE, **(place or {})}
    ) + b"u"  # fmt: skip


@pytest.mark.parametrize(
    "storage, why",
    [
        (b"N", "no storage_data"),
        (entry({"fqn": b"K\x01"}), "without a name"),
        (entry(place={"relative_path": b"N"}), "without a name"),
        (entry(place={"relative_path": pickled_text("../__0_0.distcp")}), "in another folder"),
        (entry(place={"offset": b"J\xff\xff\xff\xff"}), "an impossible place of 'w'"),
        (entry(place={"length": b"J\xff\xff\xff\xff"}), "an impossible place of 'w'"),
        (entry(place={"offset": b"\x88"}), "an impossible place of 'w'"),
        (entry(place={"length": b"N"}), "an impossible place of 'w'"),
    ],
)
def test_a_table_that_lies_is_refused(tmp_path, storage, why):
    table(tmp_path, storage)
    with pytest.raises(DumpError, match=why):
        read(tmp_path)


@pytest.mark.parametrize("storage", [b"}", b"}(" + pickled_text("w") + b"K\x01u"])
def test_entries_that_name_no_chunk_are_none(tmp_path, storage):
    table(tmp_path, storage)
    assert read(tmp_path) == {}


def test_a_chunk_that_is_no_file_of_torch_costs_a_row(tmp_path):
    table(tmp_path, entry())
    assert read(tmp_path)["w"].problem


def test_a_table_that_is_no_pickle_or_too_large_is_refused(tmp_path):
    (tmp_path / ".metadata").write_bytes(b"not a pickle")
    with pytest.raises(DumpError, match="metadata"):
        read(tmp_path)
    with pytest.raises(DumpError, match="12 bytes"):
        read(tmp_path, ReadContext(Limits(table_bytes=11)))
