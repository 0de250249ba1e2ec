"""Runs that are opened by the structure of a file before are those that are opened by themselves."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from npucmp.dump.formats import msprobe
from npucmp.dump.readers import msprobe_structure
from npucmp.dump.readers.msprobe_structure import SplitText
from npucmp.errors import DumpError

WORDS = st.one_of(
    st.floats(width=32),
    st.floats(),
    st.integers(-3, 3),
    st.just(10**400),
    st.sampled_from([None, True, False, -0.0, math.nan, math.inf, -math.inf, "text", [1.0], 1e400]),
)
TENSOR = st.fixed_dictionaries(
    {
        "type": st.just("torch.Tensor"),
        "dtype": st.sampled_from(["torch.float32", "torch.int8", "<U3"]),
        "shape": st.sampled_from([[], [2, 3], [0], "odd", [-1]]),
        "Max": WORDS,
        "Min": WORDS,
        "Mean": WORDS,
        "Norm": WORDS,
    },
    optional={
        "requires_grad": st.booleans(),
        "md5": st.one_of(st.sampled_from(["0x0", "ab12", ""]), st.floats(), st.integers()),
        "data_name": st.sampled_from(["a.pt", "a.npy", "../a.pt", "-1", None, 7]),
        "Max again": st.floats(),
    },
)
VALUE = st.one_of(
    TENSOR,
    st.fixed_dictionaries({"type": st.just("float"), "value": st.floats()}),
    st.fixed_dictionaries({"Max": st.just(1.0), "Min": st.just(2.0), "Mean": st.just(3.0), "Norm": st.just(4.0)}),
    st.fixed_dictionaries({"class_type": st.just("x"), "Max": st.just(1.0), "Min": st.just(2.0), "Mean": st.just(3.0),
                           "Norm": st.just(4.0)}),
    st.none(),
)  # fmt: skip
VALUES = st.lists(VALUE, max_size=2)
RECORD = st.fixed_dictionaries(
    {"input_args": st.lists(st.one_of(VALUE, VALUES), max_size=2), "output": VALUES},
    optional={"is_nan": st.booleans(), "other": VALUE, "input_kwargs": st.dictionaries(st.sampled_from("ab"), VALUE)},
)
NAMES = st.sampled_from(
    ["Torch.exp.0.forward", "Torch.exp.1.forward", "Module.a.B.forward.0", "Module.a.parameters_grad", "x"]
)
OPERATORS = st.dictionaries(NAMES, RECORD, max_size=3)
BREAKS = [("", ""), ('"Min"', '"Max"'), ("Max again", "Max"), ('"Mean": ', '"Mean" :  '), ("{", "[")]
BREAKS += [
    ("0.", "0.0."),
    ("1.0", "01.0"),
    ("1.0", "1.0\x00"),
    ('"Max"', '"a\\"Max"'),
    ("0x0", "0\\u0078"),
    ("2.0", "-0"),
]


def opened(folder, text):
    """All that is read of a dump.json, in words; NaN and -0.0 are told from others."""
    folder.mkdir(exist_ok=True)
    (folder / "dump.json").write_text(text)
    try:
        (run,) = msprobe.open_runs(folder)
    except DumpError as error:
        return str(error)
    return repr([(run.detail, run.notes, run.step, run.rank), *map(tuple, run.operators)])


def with_figures(tree, figures):
    """The same tree with other figures, which leaves its structure as it is but for what is no number."""
    if isinstance(tree, list):
        return [with_figures(one, figures) for one in tree]
    if not isinstance(tree, dict):
        return tree
    changed = {key: with_figures(one, figures) for key, one in tree.items()}
    return {**changed, **dict(zip(("Max", "Min", "Mean", "Norm"), figures))} if "Max" in tree else changed


@pytest.mark.large
@given(
    OPERATORS,
    st.lists(st.lists(WORDS, min_size=4, max_size=4), max_size=3),
    st.sampled_from(BREAKS),
    st.sampled_from([None, 1]),
    st.booleans(),
)
@example({"x": {"output": []}}, [], ("", ""), None, False)
def test_a_run_is_the_same_with_and_without_what_is_known(tmp_path_factory, data, figures, change, indent, has_files):
    folder = tmp_path_factory.mktemp("dump")
    if has_files:
        (folder / "dump_tensor_data").mkdir()
    several = [data, *(with_figures(data, some) for some in figures)]
    texts = [json.dumps({"task": "statistics", "level": "L1", "data": data}, indent=indent) for data in several]
    texts = [text.replace(*change) if change[0] else text for text in texts]
    found = [opened(folder, text) for text in (*texts, *texts)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SplitText, "of", lambda data: None)
        assert found == 2 * [opened(folder, text) for text in texts]


def leaf(number):
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": number, "Min": -number, "Mean": 0.5,
            "Norm": 2.0, "md5": f"{int(number):x}"}  # fmt: skip


def text_of(numbers):
    record = {"input_args": [{"type": "float", "value": 0.1}], "output": [*map(leaf, numbers)]}
    return json.dumps({"data": {"Torch.exp.0.forward": record}})


def test_a_further_file_shares_all_but_its_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(msprobe_structure, "_cache", type(msprobe_structure._cache)())
    for number, figures in enumerate([(1.0, 2.0), (3.0, 3.0)]):
        (tmp_path / f"rank{number}").mkdir()
        (tmp_path / f"rank{number}" / "dump.json").write_text(text_of(figures))
    first, second = (run.operators[0] for run in msprobe.open_runs(tmp_path))
    assert [tensor.statistics.max for tensor in second.tensors] == [3.0, 3.0]
    assert [tensor.checksum for tensor in first.tensors] == ["1", "2"]
    assert first.name is second.name and first.arguments is second.arguments
    assert first.tensors[1].label is second.tensors[1].label
    assert second.tensors[0].statistics is second.tensors[1].statistics


def test_what_is_kept_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(msprobe_structure, "_cache", type(msprobe_structure._cache)())
    monkeypatch.setattr(msprobe_structure, "MOST", 10)
    for count in range(1, 12):
        opened(tmp_path, text_of(range(count)))
        assert sum(one.size for one in msprobe_structure._cache.values()) <= 10
