"""Partners that a user wrote down."""

from __future__ import annotations

import pytest

from npucmp.align import align
from npucmp.align.cross_framework.msprobe_mapping import MsprobeMapping
from npucmp.align.mapping import OperatorNames, load, match, split_mapping
from npucmp.errors import DumpError, NpucmpError, UsageError
from tests.align.craft import a_run, own


def named(*names) -> list:
    return [own(name, order) for order, name in enumerate(names)]


@pytest.mark.parametrize(
    "target, golden, names, expected",
    [
        ("a b", "x y", {"a": "x"}, ["a x"]),
        ("a b", "x y", {"a": "y", "b": "x"}, ["a y", "b x"]),
        ("a a", "x x", {"a": "x"}, ["a x", "a x"]),
        ("a a a", "x", {"a": "x"}, ["a x"]),
        ("a b", "x", {"a": "x", "b": "x"}, ["a x"]),
        ("a", "x", {"a": "gone"}, []),
        ("a", "x", {"gone": "x"}, []),
        ("a", "a", {}, []),
    ],
)
def test_match(target, golden, names, expected):
    found = match(named(*target.split()), named(*golden.split()), names)
    assert [f"{m.target.name} {m.golden.name}" for m in found] == expected
    assert all((m.via, m.confidence) == ("mapping", 1.0) for m in found)


def test_the_mapping_goes_before_equal_names():
    target, golden = a_run(named("a", "b", "c")), a_run(named("a", "b", "c"))
    found = align(target, golden, {"a": "b", "b": "a"})
    assert [f"{m.target.name} {m.golden.name} {m.via}" for m in found.matches] == [
        "a b mapping",
        "b a mapping",
        "c c name",
    ]


NAMES = {"Module.a.Linear.forward.0": "Cell.a.Dense.forward.0", "b": "y"}


@pytest.mark.parametrize(
    "file, text",
    [
        ("m.yaml", "Module.a.Linear.forward.0: Cell.a.Dense.forward.0\nb: y\n"),
        ("m.yml", "{Module.a.Linear.forward.0: Cell.a.Dense.forward.0, 'b': \"y\"}"),
        ("m.json", '{"Module.a.Linear.forward.0": "Cell.a.Dense.forward.0", "b": "y"}'),
        ("m.toml", '"Module.a.Linear.forward.0" = "Cell.a.Dense.forward.0"\nb = "y"\n'),
        ("m.csv", "Module.a.Linear.forward.0,Cell.a.Dense.forward.0\nb,y\n"),
        ("m.csv", "target,golden\r\nModule.a.Linear.forward.0, Cell.a.Dense.forward.0 \r\nb , y\r\n"),
        ("M.CSV", "target, golden\n\nModule.a.Linear.forward.0,Cell.a.Dense.forward.0,a note\nb,y\n"),
        ("m.csv", "\ufeffModule.a.Linear.forward.0,Cell.a.Dense.forward.0\nb,y\n"),
        ("m.yaml", "\ufeffModule.a.Linear.forward.0: Cell.a.Dense.forward.0\nb: y\n"),
    ],
)
def test_load(tmp_path, file, text):
    (tmp_path / file).write_bytes(text.encode())
    assert load(tmp_path / file) == NAMES


@pytest.mark.parametrize(
    "file, text",
    [
        ("m.yaml", ""),
        ("m.yaml", "- a\n- b\n"),
        ("m.yaml", "a: {b: c}\nd: e"),
        ("m.yaml", "a: {b: {c: d}}"),
        ("m.yaml", "a: [b]"),
        ("m.yaml", "a: 1"),
        ("m.yaml", "1: a"),
        ("m.yaml", "a: null"),
        ("m.yaml", "a: [b"),
        ("m.yaml", "a: !!python/object/apply:os.getcwd []"),
        ("m.yaml", "a: 2001-99-99"),
        ("m.yaml", "a: 0b_"),
        ("m.yaml", "? [a]\n: b"),
        ("m.yaml", "a: " + "[" * 1200),
        ("m.yaml", "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n"),
        ("m.toml", "a = 1"),
        ("m.toml", "a.b = 1"),
        ("m.yaml", "- {ms_api: a}"),
        ("m.toml", "a = "),
        ("m.toml", "a = " + "[" * 100_000),
        ("m.csv", "a," + "x" * 200_000),
        ("m.csv", "a,b\nc,d\na,e\n"),
        ("m.yaml", "a: b\nc: d\na: b\n"),
    ],
)
def test_load_refuses(tmp_path, file, text):
    (tmp_path / file).write_text(text)
    with pytest.raises(UsageError) as caught:
        load(tmp_path / file)
    assert file in str(caught.value)


def huge(path):
    with open(path, "wb") as stream:
        stream.truncate(2**30)


@pytest.mark.parametrize(
    "make",
    [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_bytes(b"a: \xff\xfe"), huge],
    ids=["missing", "folder", "not UTF-8", "huge"],
)
@pytest.mark.parametrize("suffix", ["yaml", "toml", "csv"])
def test_load_names_the_file_that_cannot_be_read(tmp_path, make, suffix):
    make(tmp_path / f"m.{suffix}")
    with pytest.raises(DumpError) as caught:
        load(tmp_path / f"m.{suffix}")
    assert isinstance(caught.value, NpucmpError) and f"m.{suffix}" in str(caught.value)


NET = named("Module.net.a.Linear.forward.0", "Module.net.b.Linear.forward.0")


@pytest.mark.parametrize(
    "names, whole, cells",
    [
        ({NET[0].name: "x"}, {NET[0].name: "x"}, {}),
        ({NET[0].name: "x", "gone": "y"}, {NET[0].name: "x"}, {}),
        ({"net.a": "net.c", "gone": "y"}, {}, {"net.a": "net.c"}),
        ({"net.a": "net.c", NET[1].name: "y"}, {NET[1].name: "y"}, {"net.a": "net.c"}),
        ({"a.net": "net.c", "": "y"}, {}, {}),  # its words, in another order
        ({"net.a": "net.c", "npucmp": "content"}, {}, {"net.a": "net.c"}),
    ],
)
def test_names_of_a_table_are_operators_or_parts_of_paths(names, whole, cells):
    found, vendor = split_mapping(names, NET)
    assert (found, vendor.cells, vendor.apis) == (whole, cells, {})


@pytest.mark.parametrize("there, is_other", [("output.0", False), ("output.1", True)])
def test_names_of_tensors_map_their_operators_and_slots(there, is_other):
    here, other = NET[0].name, "Cell.net.a.Dense.forward.0"
    found, vendor = split_mapping({f"{here}.output.0": f"{other}.{there}"}, NET)
    assert found == {here: other} and vendor.cells == {}
    assert {name: api.slots for name, api in vendor.apis.items()} == (
        {here: {"output:0": "output:1"}} if is_other else {}
    )


def test_a_file_of_msprobe_has_no_names_of_operators():
    vendor = MsprobeMapping(cells={"a": "b"})
    assert split_mapping(vendor, NET) == ({}, vendor)


@pytest.mark.parametrize(
    "name, has, is_part",
    [
        (NET[0].name, True, False),
        (f"{NET[0].name}.output.0", True, False),
        ("net.a", True, True),
        ("net", True, True),
        ("Module", False, False),  # the first word is no part
        ("a.net", False, False),
        ("net.c", False, False),
        ("x", False, False),
    ],
)
def test_what_a_name_refers_to(name, has, is_part):
    runs = OperatorNames(one.name for one in NET)
    assert (runs.has(name), runs.has_part(name)) == (has, is_part)


def test_a_line_of_a_csv_file_may_stand_there_twice(tmp_path):
    (tmp_path / "m.csv").write_text("target,golden\na,b\nc,d,more\nalone\na , b\n")
    assert load(tmp_path / "m.csv") == {"a": "b", "c": "d"}
