"""A key that occurs twice in dump.json or beside it: JSON readers keep the last, npucmp calls it unreadable."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import npucmp
from npucmp.cli import npucmp as group
from npucmp.errors import NpucmpError
from tests.synthetic import chain, with_statistics, write_run

NAMES = list(chain())
FIRST, SECOND = NAMES[:2]


class Pairs(dict):
    """An object whose items json.dumps writes as they are given, keys that stand twice among them."""

    def __init__(self, pairs):
        super().__init__(x=1)  # an empty dict is written without a look at its items
        self.pairs = pairs

    def items(self):
        return self.pairs


def twice(tree, key, value=None):
    """The object with a key twice, the second time with another value."""
    return Pairs([*tree.items(), (key, tree[key] if value is None else value)])


def operator_twice(data):
    return twice(data, FIRST)


def operator_twice_with_other_values(data):
    return twice(data, FIRST, {**data[FIRST], "output": data[SECOND]["output"]})


def empty_operator_behind_it(data):
    return twice(data, FIRST, {"input_args": [], "input_kwargs": {}, "output": []})


def output_twice(data):
    return {**data, FIRST: twice(data[FIRST], "output")}


def keyword_twice(data):
    record = {**data[FIRST], "input_kwargs": Pairs([("eps", 1), ("eps", 2)])}
    return {**data, FIRST: record}


def figure_twice(data):
    (leaf,) = data[FIRST]["output"]
    return {**data, FIRST: {**data[FIRST], "output": [twice(leaf, "shape")]}}


def escaped_name(data):
    """The second of them is spelled in another way."""
    return twice(data, FIRST)


TWICE = {
    operator_twice: {"input:0", "input:1", "output:0"},
    operator_twice_with_other_values: {"input:0", "input:1", "output:0"},
    empty_operator_behind_it: {""},
    output_twice: {"input:0", "input:1", "output:0"},
    keyword_twice: {"input:0", "input:1", "output:0"},
    figure_twice: {"output:0"},
    escaped_name: {"input:0", "input:1", "output:0"},
}


def rewritten(folder, change):
    for file in folder.rglob("dump.json"):
        dump = json.loads(file.read_text())
        text = json.dumps({**dump, "data": change(dump["data"])}, indent=1)
        if change is escaped_name:
            head, _, tail = text.rpartition(f'"{FIRST}"')
            text = f'{head}"\\u0046{FIRST[1:]}"{tail}'
        file.write_text(text)
    return folder


def said(*words):
    got = CliRunner().invoke(group, [str(word) for word in words])
    assert got.exception is None or isinstance(got.exception, (SystemExit, NpucmpError)), got.exception
    return got.exit_code, f"{got.stdout}{got.exception or ''}"


@pytest.mark.few(5)
@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("change", TWICE)
def test_a_key_that_stands_twice_is_unreadable(tmp_path, change, statistics):
    clean, other = write_run(tmp_path / "clean", chain()), write_run(tmp_path / "other", chain())
    if statistics:
        clean, other = with_statistics(clean, alone=True), with_statistics(other, alone=True)
    rewritten(other, change)
    for target, golden in ((other, clean), (clean, other)):
        for report in (npucmp.compare(target, golden), npucmp.rerun_diff([golden, target])):
            unreadable = {one.pair.slot for one in report.findings if one.verdict.value == "unreadable"}
            assert unreadable == TWICE[change] and report.exit_status == 2
            assert {one.pair.operator.name for one in report.findings if one.verdict.value == "unreadable"} == {FIRST}
    status, words = said("compare", other, clean)
    assert (
        status == 2
        and "AGREES" not in words
        and f"duplicate keys make their operator or tensor unreadable: {FIRST}" in words
    )


def test_a_file_that_python_alone_reads(tmp_path):
    """NaN stands bare in it, which strict readers refuse."""
    clean, other = write_run(tmp_path / "clean", chain()), write_run(tmp_path / "other", chain())
    for folder in (clean, other):
        for file in folder.rglob("dump.json"):
            file.write_text(file.read_text().replace('"value": 1e-05', '"value": NaN'))
    assert said("compare", other, clean)[0] == 0
    assert said("compare", rewritten(other, operator_twice), clean)[0] == 2


def test_data_twice_is_no_dump(tmp_path):
    clean, other = write_run(tmp_path / "clean", chain()), write_run(tmp_path / "other", chain())
    file = next(other.rglob("dump.json"))
    dump = json.loads(file.read_text())
    file.write_text(json.dumps(twice(dump, "data")))
    status, words = said("compare", other, clean)
    assert status != 0 and '"data" more than once' in words


def test_other_keys_of_the_file_are_told(tmp_path):
    clean, other = write_run(tmp_path / "clean", chain()), write_run(tmp_path / "other", chain())
    file = next(other.rglob("dump.json"))
    file.write_text(json.dumps(twice(json.loads(file.read_text()), "level", "L0")))
    status, words = said("compare", other, clean)
    assert status == 0 and "duplicate keys" in words and ": level" in words


@pytest.mark.parametrize("value", ["a: b::c", '\\": \\"', "\\u003a", "x\\u003Ay:", "\\ud800:", "\\n\\t:"])
def test_colons_in_texts_are_no_keys(tmp_path, value):
    clean, other = write_run(tmp_path / "clean", chain()), write_run(tmp_path / "other", chain())
    for folder in (clean, other):
        for file in folder.rglob("dump.json"):
            file.write_text(file.read_text().replace('"type": "float"', f'"type": "float", "value:": "{value}"', 1))
    status, words = said("compare", other, clean)
    assert status == 0 and "more than once" not in words
    assert said("compare", rewritten(other, operator_twice), clean)[0] == 2


def test_companion_files(tmp_path):
    clean, other = write_run(tmp_path / "clean", chain()), write_run(tmp_path / "other", chain())
    place = next(other.rglob("dump.json")).parent
    scopes = Pairs([(FIRST, "Module.a.A.forward.0"), (SECOND, None), (FIRST, "Module.b.B.forward.0")])
    place.joinpath("construct.json").write_text(json.dumps(scopes))
    place.joinpath("stack.json").write_text(json.dumps(Pairs([(FIRST, ["File a.py"]), (FIRST, ["File b.py"])])))
    status, words = said("compare", other, clean)
    assert status == 0
    for name in ("construct.json", "stack.json"):
        assert f"{place / name}: duplicate keys are ignored: {FIRST}" in words


@pytest.mark.parametrize(
    "name, text",
    [
        ("map.yaml", f"{FIRST}: {FIRST}\n{SECOND}: {SECOND}\n{FIRST}: {SECOND}\n"),
        ("map.csv", f"target,golden\n{FIRST},{FIRST}\n{FIRST},{SECOND}\n"),
        ("map.toml", f'"{FIRST}" = "{FIRST}"\n"{FIRST}" = "{SECOND}"\n'),
    ],
)
def test_a_mapping_that_names_an_operator_twice(tmp_path, name, text):
    clean = write_run(tmp_path / "clean", chain())
    tmp_path.joinpath(name).write_text(text)
    got = CliRunner().invoke(group, ["compare", str(clean), str(clean), "--mapping", str(tmp_path / name)])
    assert got.exit_code != 0 and isinstance(got.exception, NpucmpError) and name in str(got.exception)
    if name != "map.toml":
        assert f"'{FIRST}' occurs twice" in str(got.exception)


def test_an_array_and_a_member_of_its_name(tmp_path):
    """zip members x.npy and x: neither hides the other."""
    import zipfile

    for folder in ("a", "b"):
        tmp_path.joinpath(folder).mkdir()
        np.savez(tmp_path / folder / "all.npz", x=np.arange(6.0))
    with zipfile.ZipFile(tmp_path / "a" / "all.npz", "a") as file:
        file.writestr("x", b"1234")
    report = npucmp.compare(tmp_path / "a", tmp_path / "b")
    assert report.exit_status == 2
    assert sorted(one.verdict.value for one in report.findings) in (["match", "missing"], ["match", "unreadable"])


def test_a_graph_with_a_key_twice_is_refused():
    from npucmp.dump.graphs.ge import from_json
    from npucmp.errors import DumpError

    assert from_json('{"graph": [{"name": "a"}]}', "graph.json")
    with pytest.raises(DumpError, match="a duplicate name"):
        from_json('{"graph": [{"name": "a", "name": "b"}]}', "graph.json")
