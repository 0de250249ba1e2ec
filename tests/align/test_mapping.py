"""Partners that a user wrote down."""

from __future__ import annotations

import pytest

from npucmp.align.mapping import load, load_relations
from npucmp.errors import UsageError


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


def test_a_line_of_a_csv_file_may_stand_there_twice(tmp_path):
    (tmp_path / "m.csv").write_text("target,golden\na,b\nc,d,more\nalone\na , b\n")
    assert load(tmp_path / "m.csv") == {"a": "b", "c": "d"}


def test_a_third_column_is_a_view_or_a_comment(tmp_path):
    (tmp_path / "m.csv").write_text("target,golden,view\na,b,as before\nc,d,scale(2)\n")
    assert load(tmp_path / "m.csv") == {"a": "b", "c": "d"}
    assert load_relations(tmp_path / "m.csv") == {"c": "scale(2)"}
