"""The picture of where two tensors differ: what is counted, and what is drawn of it."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from npucmp.measure.bitwise import differences
from npucmp.measure.heat_map import ACROSS, DOWN
from npucmp.model import DifferenceMap, TensorRef
from npucmp.report.svg import LEVELS, svg_data

SHAPES = st.sampled_from([(1,), (7,), (5000,), (3, 1), (24, 64), (25, 65), (4, 96, 160), (130, 70), (2, 3, 1, 5)])


def tensor(folder, name, values):
    np.save(Path(folder, name), values)
    return TensorRef("output:0", values.dtype.name, values.shape, str(Path(folder, f"{name}.npy")), "npy")


def map_of(x, y):
    with tempfile.TemporaryDirectory() as folder:
        return differences(tensor(folder, "x", x), tensor(folder, "y", y)).picture


@given(shape=SHAPES, seed=st.integers(0, 99), share=st.sampled_from([0.001, 0.05, 0.6, 1.0]))
def test_every_differing_element_is_counted_in_its_cell(shape, seed, share):
    chance = np.random.default_rng(seed)
    x = chance.integers(-(2**31), 2**31, shape, np.int32)
    differs = chance.random(shape) < share
    differs.flat[chance.integers(differs.size)] = True
    y = np.where(differs, x ^ chance.integers(1, 2**31, shape, np.int32), x)
    found = map_of(x, y)
    rows, columns = found.rows, found.columns
    assert rows * columns == x.size and columns == next((n for n in reversed(shape) if n > 1), 1)
    down = len(found.counts) // found.across
    assert (down, found.across) == (min(DOWN, rows), min(ACROSS, columns))
    expected = np.zeros((down, found.across), int)
    for row, column in np.argwhere(differs.reshape(rows, columns)):
        expected[row * down // rows, column * found.across // columns] += 1
    assert found.counts == tuple(expected.ravel())
    changed = (x ^ y).view(np.uint32)
    assert found.bits == tuple(int(np.count_nonzero(changed >> bit & 1)) for bit in range(31, -1, -1))


def cells_of(path):
    return {(int(y), int(x) + i) for x, y, n in re.findall(r"M(\d+) (\d+)\.5h(\d+)", path) for i in range(int(n))}


@given(rows=st.integers(1, 60), columns=st.integers(1, 150), data=st.data())
@settings(max_examples=8, deadline=None)
def test_every_cell_is_drawn_as_dark_as_its_share(rows, columns, data):
    down, across = min(DOWN, rows), min(ACROSS, columns)
    sizes = np.zeros((down, across), int)
    np.add.at(sizes, (np.arange(rows)[:, None] * down // rows, np.arange(columns)[None] * across // columns), 1)
    counts = [data.draw(st.sampled_from([0, 1, size // 2, size])) for size in sizes.ravel().tolist()]
    picture = svg_data(DifferenceMap("int8", rows, columns, across, tuple(counts)))
    shares = np.array(counts).reshape(down, across) / sizes
    for level, path in enumerate(picture["paths"]):
        least = LEVELS[level - 1] if level else 0
        most = LEVELS[level] if level < len(LEVELS) else 2
        here = (shares > 0) & (shares >= least) & (shares < most)
        assert cells_of(path) == {*map(tuple, np.argwhere(here).tolist())}
