"""Results as their holder meets them in Python: keyword arguments, words, cells of a notebook, tables, pickles."""

from __future__ import annotations

import pickle
from html.parser import HTMLParser
from pathlib import Path

import pytest

import npucmp
from npucmp.errors import UsageError
from npucmp.report import answer_of, terminal
from tests.reports import large, named

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
SOFTMAX = SAMPLES / "msprobe_softmax"
DUMPS = str(SOFTMAX / "target"), str(SOFTMAX / "golden")


@pytest.fixture(scope="module")
def results():
    return {
        "compare": npucmp.compare(*DUMPS),
        "rerun-diff": npucmp.rerun_diff([SAMPLES / "rerun_scatter" / f"run{number}" for number in (1, 2)]),
        "fusion-diff": npucmp.fusion_diff(SAMPLES / "cann_fused_conv/target", SAMPLES / "cann_fused_conv/golden"),
        "overflow": npucmp.overflow(DUMPS[0], headroom=200.0),
        "check": npucmp.check(DUMPS[0]),
        "precheck": npucmp.precheck(*DUMPS),
        "replay": npucmp.replay(DUMPS[0], include="*softmax.0*", engine="numpy"),
    }


def test_keywords_are_laid_over_options_and_wrong_ones_refused():
    some = npucmp.compare(*DUMPS, npucmp.Options(include="*softmax*", jobs=1), exclude="*backward*")
    assert {one.pair.operator.name.split(".")[1] for one in some.findings} == {"softmax"}
    assert not [one for one in some.findings if one.pair.operator.phase == "backward"]
    assert (
        len(npucmp.compare(target=DUMPS[0], golden=DUMPS[1], options=npucmp.Options(include="*softmax*")).findings) == 8
    )
    with pytest.raises(TypeError, match=r"compare\(\) has no argument includ; did you mean include\?"):
        npucmp.compare(*DUMPS, includ="*softmax*")
    with pytest.raises(UsageError, match="give the runs as one list"):
        npucmp.rerun_diff(*DUMPS)
    with pytest.raises(UsageError, match="are no Options"):
        npucmp.compare(*DUMPS, "*softmax*")
    with pytest.raises(TypeError):
        npucmp.compare(DUMPS[0])


class _Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open, self.seen = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        assert not attributes
        self.seen.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("command", ["compare", "rerun-diff", "fusion-diff", "overflow", "check", "precheck", "replay"])
def test_a_result_speaks_for_itself(command, results):
    result = results[command]
    answer = answer_of(result)
    assert (result.verdict, result.command) == (answer.word, command)
    assert result.exit_status in (0, 1, 2)
    assert f"{result}\n" == terminal.render(answer) and str(result).splitlines()[-1].startswith(result.verdict)
    assert len(repr(result).encode()) < 1000 and "\n" not in repr(result) and result.verdict in repr(result)
    tags = _Tags(result._repr_html_())
    assert not tags.open and tags.seen <= {"p", "b", "table", "tr", "td", "th", "br"}
    assert pickle.loads(pickle.dumps(result)) == result
    frame = result.to_pandas()
    assert {"cause", "limit"} <= {*frame.columns}
    first, *others = answer.tables
    assert len(frame) == len(next(iter(first.columns().values())))
    for table in others:
        name = table.file[: -len(".csv")]
        assert [*result.to_pandas(name).columns] == [*result.to_pandas(table.file).columns] == [*table.names]
    with pytest.raises(UsageError, match="has no table 'rots'"):
        result.to_pandas("rots")


def test_what_is_shown_stays_small_however_much_was_found():
    assert len(repr(large(2000))) < 1000 and len(large(2000)._repr_html_()) < 20_000
    hostile = named("<script>alert(1)</script>\x1b[2J" * 40, because="<img src=x onerror=alert(1)>\u202e")
    assert len(repr(hostile).encode()) < 1000 and "\x1b" not in repr(hostile) + str(hostile)
    assert not _Tags(hostile._repr_html_()).seen & {"script", "img"} and "\u202e" not in hostile._repr_html_()
    (one,), (root,) = hostile.comparisons, hostile.roots
    assert len(repr(one)) < 200 and len(repr(one.target)) < 400 and len(repr(root.pair.operator)) < 400
    assert len(repr(root)) < 200 and repr(root).isascii() and repr(root).isprintable()
