"""fusion_result.json in its three generations, real files among them, and what is no such file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from npucmp import Limits
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers import fusion_result
from npucmp.dump.readers.fusion_result import Effect, read_effects
from npucmp.errors import DumpError

DATA = Path(__file__).parent.parent.parent.parent.parent / "shared" / "data" / "cann"
shared = pytest.mark.skipif(not DATA.is_dir(), reason="the shared files are not beside this checkout")

ONE = {
    "graph_fusion": {"A": {"effect_times": "2", "match_times": "3"}, "B": {"effect_times": "0", "match_times": "1"}},
    "ub_fusion": {"TbeA": {"effect_times": "1", "match_times": "1", "repository_hit_times": "0"}},
    "session_and_graph_id": "0_0",
}
TWO = {"graph_fusion": {"A": {"effect_times": "5", "match_times": "5"}}, "graphId": "1"}
OF_ONE = [Effect("A", "GraphFusion", 2), Effect("B", "GraphFusion", 0), Effect("TbeA", "UBFusion", 1)]
OF_BOTH = [Effect("A", "GraphFusion", 7), *OF_ONE[1:]]
GENERATIONS = {
    "one object": (json.dumps(ONE), OF_ONE),
    "two, one after the other": (json.dumps(ONE, indent=4) + json.dumps(TWO), OF_BOTH),
    "two on lines": (json.dumps(ONE) + "\n\n" + json.dumps(TWO) + "\n", OF_BOTH),
    "a list": (json.dumps([ONE, TWO]), OF_BOTH),
    "keyed": (json.dumps({"session_and_graph_id_0_0": ONE, "session_and_graph_id_0_1": TWO}), OF_BOTH),
    "keyed, twice": (json.dumps({"session_and_graph_id_0_0": ONE}) + json.dumps({"x": TWO}), OF_BOTH),
    "with a byte order mark": ("\ufeff" + json.dumps(ONE), OF_ONE),
    "one section only": (json.dumps(TWO), [Effect("A", "GraphFusion", 5)]),
    "counts as numbers": (json.dumps({"ub_fusion": {"T": {"effect_times": 3}}}), [Effect("T", "UBFusion", 3)]),
    "an empty section": ('{"graph_fusion": {}}', []),
}
NO_COUNTS = [None, "many", -3, 1.5, [], {}, "", "-1", "9" * 400, "١٢x"]
BROKEN = {
    "nothing": "",
    "garbage": "\x00\x01{{{",
    "no JSON": "graph_fusion",
    "cut short": json.dumps(ONE)[:-9],
    "something behind it": json.dumps(ONE) + "]",
    "other JSON": '{"a": {"b": 1}}',
    "a number": "12",
    "a list of lists": '[[{"graph_fusion": {}}]]',
    "sections that are none": '{"graph_fusion": [1], "ub_fusion": "x"}',
    "a huge number": '{"graph_fusion": {"A": {"effect_times": ' + "9" * 10_000 + "}}}",
    "deep": "[" * 200_000,
    "deep objects": '{"graph_fusion":' * 100_000,
}


def written(folder: Path, text: str) -> Path:
    path = folder / fusion_result.FILE
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("text, effects", GENERATIONS.values(), ids=list(GENERATIONS))
def test_generations(tmp_path, text, effects):
    assert read_effects(written(tmp_path, text)) == effects


@pytest.mark.parametrize("count", NO_COUNTS, ids=repr)
def test_what_is_no_count_is_none(tmp_path, count):
    text = json.dumps({"graph_fusion": {"A": {"effect_times": count}, "B": count}})
    assert read_effects(written(tmp_path, text)) == [Effect("A", "GraphFusion", 0), Effect("B", "GraphFusion", 0)]


@pytest.mark.parametrize("text", BROKEN.values(), ids=list(BROKEN))
def test_what_is_no_such_file(tmp_path, text):
    with pytest.raises(DumpError):
        read_effects(written(tmp_path, text))


def test_every_prefix_is_an_error_or_all_that_is_complete(tmp_path):
    text = json.dumps(ONE) + json.dumps(TWO)
    for length in range(len(text)):
        path = written(tmp_path, text[:length])
        if length == len(json.dumps(ONE)):
            assert read_effects(path) == OF_ONE
        else:
            with pytest.raises(DumpError):
                read_effects(path)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / fusion_result.FILE
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(DumpError, match="UTF-8"):
        read_effects(path)


def test_too_large(tmp_path):
    with pytest.raises(DumpError, match="more than the limit table_bytes of 100"):
        read_effects(written(tmp_path, json.dumps(ONE)), ReadContext(Limits(table_bytes=100)))


def test_half_characters_can_be_written_again(tmp_path):
    (effect,) = read_effects(written(tmp_path, '{"graph_fusion": {"A\\ud800": {"effect_times": "1"}}}'))
    assert effect.name.encode("utf-8") == b"A\\ud800"


@shared
@pytest.mark.parametrize("name", ["single_object", "concatenated", "keyed"])
def test_real_files(name):
    """All counts against a plain search of the text, which knows nothing of JSON."""
    path = DATA / f"fusion_result.{name}.json"
    times: dict[str, int] = {}
    for found in re.finditer(r'"(\w+)":\s*\{\s*"effect_times":\s*"(\d+)"', path.read_text()):
        times[found[1]] = times.get(found[1], 0) + int(found[2])
    assert {effect.name: effect.times for effect in read_effects(path)} == times
    assert len(times) >= 4


@shared
def test_a_real_file_has_both_kinds():
    effects = read_effects(DATA / "fusion_result.single_object.json")
    text = (DATA / "fusion_result.single_object.json").read_text()
    behind = text[text.index('"ub_fusion"') :]
    assert {one.name for one in effects if one.kind == "UBFusion"} == set(re.findall(r'"(\w+)":\s*\{\s*"eff', behind))
