"""report.html: what stands in the file, and what a real browser makes of it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import npucmp
from npucmp import fusion_diff, overflow, replay, rerun_diff
from npucmp.model import Cause, Verdict
from npucmp.model.relation import LayoutFacts, PlacedCollective, Placement, Relation
from npucmp.report import answer_of, compare, html
from npucmp.report.page_json import _column, page_data
from npucmp.report.sanitise import visible
from npucmp.reruns import report as reruns
from tests.browser import browser, opened, skip_reason
from tests.reports import large, named
from tests.synthetic import chain, write_run

ROOT = Path(__file__).parent.parent.parent
SAMPLES = ROOT / "sample_dumps"
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "<!--<script>",
    "\"'><b>bold</b>",
    "{{ 7*7 }}{% raw %}",
    "javascript:alert(3)",
    "a\u202eb\u2028c\x00d\x1b[31m",
    "\ud800",
    "&lt;b&gt;",
    "]]>" + "é" * 300,
    "__proto__",
    "constructor",
)
in_chromium = pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "a browser is here")


def page_of(report, metrics=()) -> str:
    return html.render(answer_of(report, metrics))["report.html"].decode()


def compared(name):
    return npucmp.compare(SAMPLES / name / "target", SAMPLES / name / "golden")


def overflowed(folder):
    x = np.linspace(-2, 2, 16).reshape(4, 4).astype(np.float16)
    hot, lost = x.copy(), x.copy()
    hot[2, 1], lost[0, 3] = np.inf, np.nan
    operators = {
        "Torch.linear.0.forward": {"in": [x], "out": [x * 8]},
        "Torch.exp.0.forward": {"in": [x * 8], "out": [hot]},
        "Torch.sub.0.forward": {"in": [hot, hot], "out": [lost]},
        "Torch.where.0.forward": {"in": [x > 0, lost, 0.0], "out": [x]},
    }
    return overflow(write_run(folder, operators))


def growing():
    """Operators whose outputs come nearer to the largest float16 and leave it."""
    values = [np.array([0.5, largest], np.float16) for largest in (16, 256, 4096, 65472, np.inf)]
    return {f"Torch.mul.{i}.forward": {"in": [values[max(0, i - 1)]], "out": [values[i]]} for i in range(len(values))}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """A report of every command."""
    runs = [SAMPLES / "rerun_scatter" / f"run{i}" for i in (1, 2, 3)]
    fused = SAMPLES / "cann_fusion_pass"
    return {
        "compare": compared("msprobe_softmax"),
        "clean": compared("msprobe_clean"),
        "overflow": overflowed(tmp_path_factory.mktemp("hot")),
        "fusion-diff": fusion_diff(fused / "target", fused / "golden"),
        "rerun-diff": rerun_diff(runs),
        "growing": overflow(write_run(tmp_path_factory.mktemp("growing"), growing()), headroom=9),
        "replay": replay(SAMPLES / "overflow_exp" / "target", engine="numpy"),
        "cool": overflow(SAMPLES / "msprobe_clean" / "golden"),
        "ranks": compared("msprobe_tensor_parallel"),
    }


@pytest.fixture(scope="module")
def pages(reports, tmp_path_factory):
    """The files of `reports`, and of a large and of a hostile report."""
    folder = tmp_path_factory.mktemp("pages")
    made = {
        **reports,
        "large": large(20_000),
        "hostile": named(*HOSTILE),
        "many ranks": held_by_ranks(large(5_000), 128),
    }
    for name, report in made.items():
        (folder / f"{name}.html").write_text(page_of(report), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in made}


def held_by_ranks(report, count):
    """The report as one of ranks in 4 stages that hold the tensors of a quarter of the operators each; rank 7 differs
    in one of them. The names of its collectives are hostile."""
    (one,) = report.comparisons
    stages = [range(stage * count // 4, (stage + 1) * count // 4) for stage in range(4)]
    findings = []
    for place, finding in enumerate(one.findings):
        ranks = tuple(stages[4 * place // len(one.findings)])
        errors = tuple((rank, 0.5 if (rank, place) == (7, 101) else 1e-9) for rank in ranks)
        held = Relation(ranks, (Placement("shard"),), tuple((rank, "op") for rank in ranks), rank_errors=errors)
        pair = finding.pair._replace(target=finding.pair.target._replace(relation=held))
        verdict = Verdict.DIVERGED if place == 101 else Verdict.MATCH
        findings.append(
            finding._replace(measurement=finding.measurement._replace(pair=pair), verdict=verdict, limit=1e-6)
        )
    name = one.findings[300].pair.operator.name
    every = tuple(PlacedCollective(one.step, hostile, name, (0, 1)) for hostile in HOSTILE)
    stage_of = tuple(4 * rank // count for rank in range(count))
    facts = LayoutFacts("", "", (*range(count),), 4, stage_of=stage_of, collectives=every)
    return replace(report, comparisons=(replace(one, findings=tuple(findings), roots=()),), layout=facts)


class Elements(HTMLParser):
    """Start tags with their attributes, and the text of each script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.texts, self.inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.texts.append([tag, dict(attrs), ""])

        self.inside = tag in ("script", "style")

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.texts[-1][2] += data


def data_of(text: str):
    found = {one[1].get("id"): json.loads(one[2]) for one in Elements(text).texts if "type" in one[1]}
    if "others" not in found:
        return found["data"]
    pieces = found["data"]["deflate"], found["others"]
    first, others = (json.loads(zlib.decompress(base64.b64decode(piece))) for piece in pieces)
    for part in ("operators", "rows"):
        first[part]["columns"].update(others[part])
    return first


COMMANDS = ("compare", "clean", "overflow", "fusion-diff", "rerun-diff", "ranks")


@pytest.mark.few(3)
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_loaded_from_elsewhere(reports, name):
    text = page_of(reports[name])
    for tag, attributes in Elements(text).tags:
        assert tag not in ("iframe", "object", "embed", "base", "form") or attributes.get("id") == "filters"
        assert not [key for key in attributes if key.startswith("on") or key in ("src", "srcset", "style")]
        if "href" in attributes:
            assert attributes["href"].startswith("#op=") or attributes["href"] == "data:,"
    assert "@import" not in text and "url(" not in text


@pytest.mark.parametrize("name", COMMANDS)
def test_the_policy_names_exactly_these_scripts(reports, name):
    elements = Elements(page_of(reports[name]))
    (policy,) = (one["content"] for tag, one in elements.tags if one.get("http-equiv") == "Content-Security-Policy")
    run = [text for tag, attributes, text in elements.texts if "type" not in attributes]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run]
    assert sorted(re.findall(r"'sha256-([^']+)'", policy)) == sorted(hashes)
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy


def test_scripts_make_no_elements_from_text():
    for name in html.SCRIPTS:
        text = (html.PAGE / name).read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|fetch\(", text
        )


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_stays_text_in_the_file(name):
    text = page_of(named(name))
    elements = Elements(text)
    harmless = Elements(page_of(named("harmless")))
    assert [tag for tag, _ in elements.tags] == [tag for tag, _ in harmless.tags]
    assert not re.search("[\u202a-\u202e\u2028\x00\x1b\ud800]", text)
    assert data_of(text)["operators"]["columns"]["op"] == {"all": visible(name)}


def test_what_is_large_is_deflated_and_the_same():
    small, big = named("a"), large(2_000)
    assert '{"deflate":' not in page_of(small) and '{"deflate":' in page_of(big)
    assert data_of(page_of(big)) == json.loads(json.dumps(page_data(answer_of(big).detail())))


@pytest.mark.large
def test_size_of_20000_rows(pages):
    assert pages["large"].stat().st_size < 2 * 2_500_000  # it holds 40,000


def unpacked(table, name):
    column = table["columns"].get(name, {"all": None})
    if "codes" in column:
        return [column["words"][code] for code in column["codes"]]
    return column.get("values") or [column["all"]] * table["length"]


@pytest.mark.parametrize("name", ["compare", "fusion-diff", "rerun-diff"])
def test_every_row_is_there(reports, name):
    report, data = reports[name], data_of(page_of(reports[name]))
    assert data["rows"]["length"] == len(report.findings) == sum(unpacked(data["operators"], "rows"))
    assert sorted(unpacked(data["rows"], "verdict")) == sorted(finding.verdict.value for finding in report.findings)


@pytest.mark.parametrize(
    "cells, packed",
    [
        ([None, None], None),
        (["", ""], None),
        ([1.0, 1.0], {"all": 1, "number": True}),
        ([0.123456789, None], {"values": [0.1235, None], "number": True}),
        ([float("nan"), float("-inf")], {"values": ["NaN", "-Infinity"], "number": True}),
        ([2**60, 1], {"values": [float(2**60), 1], "number": True}),
        (["a", "b", "a", "a"], {"words": ["a", "b"], "codes": [0, 1, 0, 0]}),
        (["a\x00", "b"], {"values": ["a\\x00", "b"]}),
        ([("a\n", "b"), ()], {"values": [("a\\x0a", "b"), None]}),
        ([True, False, True, True], {"words": [True, False], "codes": [0, 1, 0, 0]}),
        ([], None),
    ],
)
def test_columns(cells, packed):
    assert _column(cells) == packed


def test_who_reads_whom_is_told_by_content(tmp_path):
    runs = [write_run(tmp_path / name, chain(faults)) for name, faults in (("target", {2: 1.5}), ("golden", {}))]
    data = data_of(page_of(npucmp.compare(*runs)))
    producers = [one for one in unpacked(data["rows"], "producer") if one is not None]
    assert producers == [0, 1, 2, 3, 4]
    assert {one for one in unpacked(data["rows"], "linked") if one} == {"by equal content"}


def test_the_answer_is_told_without_scripts(reports):
    text = re.sub(r"<script.*?</script>", "", page_of(reports["compare"]), flags=re.DOTALL)
    for words in (
        "First diverging operator",
        "Functional.softmax.1.forward",
        "BORN",
        "make.py:67",
        "54 by name",
        "float32",
    ):
        assert words in text


def test_first_is_not_said_where_something_was_not_compared(reports):
    report = reports["compare"]
    (one,) = report.comparisons
    unseen = tuple(f._replace(verdict=npucmp.model.Verdict.MISSING) if f.pair.order == 3 else f for f in one.findings)
    text = page_of(replace(report, comparisons=(replace(one, findings=unseen),)))
    assert "First diverging operator" not in text and "First operator that diverges among those compared" in text


def test_extra_metrics_can_be_shown(reports):
    assert "snr" in data_of(page_of(reports["compare"], ["snr"]))["columns"]


def test_the_map_of_ranks_has_the_error_of_each_part(reports):
    data = data_of(page_of(reports["ranks"]))
    assert data["ranks"]["ranks"] == [0, 1] and data["ranks"]["stages"] == [0, 0]
    names, columns = _unpacked(data["operators"]["columns"]["op"]), data["rows"]["columns"]
    cells, slots = _unpacked(columns["rank_errors"]), _unpacked(columns["slot"])
    own, row = {}, 0
    for name, count in zip(names, _unpacked(data["operators"]["columns"]["rows"])):
        own.update({(name, slots[at]): cells[at] for at in range(row, row + count)})
        row += count
    wrong = own["Tensor.__add__.4.forward", "output:0"]
    assert len(wrong) == 2 and min(wrong) > 0.1
    assert own["Functional.linear.5.forward", "output:0"] == ["sum", "sum"]
    assert max(own["Functional.linear.4.forward", "output:0"]) < 1e-6
    before = {name: (names[at], ranks) for at, name, ranks in data["ranks"]["collectives"]}
    assert before["Distributed.all_reduce.1.forward"][1] == [0, 1]
    assert before["Distributed.all_reduce.1.forward"][0] == "Tensor.__add__.0.forward"
    assert "ranks" not in data_of(page_of(reports["compare"]))


def _unpacked(column):
    if "codes" in column:
        return [column["words"][code] for code in column["codes"]]
    return column["values"]


def test_an_operator_without_a_path_is_within_its_module(tmp_path):
    block, x = "Module.net.layers.0.Block.forward.0", np.ones((4, 4), np.float32)
    paths = []
    for side in ("target", "golden"):
        operators = {"Functional.relu.0.forward": {"in": [x], "out": [x]}, block: {"in": [x], "out": [x]}}
        paths.append(write_run(tmp_path / side, operators, level="mix"))
        structure = {"Functional.relu.0.forward": block, block: None}
        (paths[-1] / "step0/proc1/construct.json").write_text(json.dumps(structure))
    operators = data_of(page_of(npucmp.compare(*paths)))["operators"]
    within = dict(zip(unpacked(operators, "op"), unpacked(operators, "within")))
    assert within == {"Functional.relu.0.forward": "Module.net.layers.0", block: None}


# In a real browser


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture
def show(chromium, pages):
    """Opens a page by its name; afterwards nothing may have complained."""
    shown = []

    def show(name, fragment="", **settings):
        context = opened(pages[name], fragment, chromium, **settings)
        shown.append((context, context.__enter__()))
        return shown[-1][1]

    yield show
    complaints = [words for _, page in shown for words in page.complaints]
    for context, _ in shown:
        context.__exit__(None, None, None)
    assert complaints == []


def cells(page, column):
    """What the rows in the document show in a column."""
    return page.evaluate(
        """(name) => [...document.querySelectorAll("#rows tbody tr:not([aria-hidden])")].map(
             (row) => row.children[table.shown.indexOf(name)].textContent)""",
        column,
    )


@in_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", COMMANDS)
def test_opens_without_complaints(show, name, scheme):
    page = show(name, color_scheme=scheme)
    assert page.locator("#table").is_visible()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 21, 27)"
    assert dark == (scheme == "dark")
    wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    assert not wide, "the page has to be scrolled sideways"


@in_chromium
def test_first_rows_of_20000_operators_within_a_second(chromium, pages):
    taken = []
    for _ in range(5):
        with opened(pages["large"], started=chromium) as page:
            taken.append(int(page.evaluate("document.documentElement.dataset.rows")))
            assert page.locator("#rows tbody tr").count() < 60
            assert page.evaluate("data.rows.length") == 40_000
        if taken[-1] < 1000:
            return
    pytest.fail(f"first rows after {taken} ms")


@in_chromium
def test_the_chart_stays_fluid(show):
    page = show("large")
    drawn = page.evaluate(
        "[1, 2, 3].map(() => { const from = performance.now(); drawChart(); return performance.now() - from })"
    )
    assert min(drawn) < 200
    hovered = page.evaluate(
        """() => {
          const from = performance.now();
          for (let i = 0; i < 100; i++) nearest(chart.panels[0], 70 + 10 * i, 90);
          return (performance.now() - from) / 100;
        }"""
    )
    assert hovered < 16


@in_chromium
def test_filters(show, reports):
    page = show("compare")
    verdicts = [finding.verdict for finding in reports["compare"].findings]
    page.fill("#text-filter", "Functional.Softmax output:0")
    assert set(cells(page, "op_type")) == {"softmax"} and set(cells(page, "slot")) == {"output:0"}
    page.fill("#text-filter", "")
    page.select_option('select[aria-label="filter by verdict"]', "differs")
    assert set(cells(page, "verdict")) == {"✗ diverged"}
    page.select_option('select[aria-label="filter by cause"]', "BORN")
    assert set(cells(page, "op")) == {"Functional.softmax.1.forward"}
    page.click("#reset")
    assert page.locator("#shown-count").text_content() == f"{len(verdicts)} rows"
    page.click('button[data-filter="diverged"]')
    assert page.locator("#shown-count").text_content() == f"{verdicts.count('diverged')} of {len(verdicts)} rows"


@in_chromium
def test_the_table_opens_with_what_differs_and_knows_its_words(show, reports):
    page = show("compare")
    differing = sum(finding.verdict == "diverged" for finding in reports["compare"].findings)
    rows = len(reports["compare"].findings)
    assert page.locator("#shown-count").text_content() == f"{differing} of {rows} rows"
    assert page.input_value('select[aria-label="filter by verdict"]') == "differs"
    assert re.fullmatch(r"1 − 1\.\d\de-6", cells(page, "cosine")[0])
    page.click("#reset")
    for words, column, found in (("born", "cause", "◆ BORN"), ("diverged", "verdict", "✗ diverged")):
        page.fill("#text-filter", words)
        assert found in cells(page, column)
    page.fill("#text-filter", "round_off")
    assert page.evaluate('table.visible.every((row) => cell("rule", row) === "round_off") && table.visible.length > 0')
    page.fill("#text-filter", "no such words")
    assert "no row matches these filters" in page.locator("#rows tbody").text_content()


@in_chromium
def test_an_operator_shows_where_its_error_lies_and_both_sides(show):
    page = show("compare", "#op=Functional.softmax.1.forward")
    card = page.locator("#operator .card.bad")
    assert card.locator('[data-look="17/output:0"] path').count() > 0
    assert card.locator("table").last.inner_text().split()[:4] == ["min", "mean", "max", "target"]
    assert card.locator("table.worst td").first.text_content() == "[1, 2, 4]"
    stack = page.locator("#operator pre").last.inner_text()
    assert "\\x0a" not in stack and all(line.startswith("File ") for line in stack.splitlines())


def around(page):
    """The graph: operator → (its column, what its box says), and who stands in the middle."""
    boxes = page.locator("#around .node").all()
    left = sorted({float(one.locator("rect").get_attribute("x")) for one in boxes})
    name = "(one) => ofOperator('op', Number(one.dataset.operator))"
    found = {one.evaluate(name): (left.index(float(one.locator("rect").get_attribute("x"))),
                                  one.locator(".state").text_content()) for one in boxes}  # fmt: skip
    return found, page.locator("#around .node.middle").evaluate(name)


@in_chromium
def test_the_graph_around_a_suspect(show):
    page = show("compare")
    boxes, middle = around(page)
    assert middle == "Functional.softmax.1.forward"
    column, words = boxes[middle]
    assert column == 2 and words.startswith("◆ BORN ") and words.endswith(" · place 1")
    assert boxes["Tensor.__mul__.1.forward"] == (1, "✓ no error")
    assert boxes["Torch.matmul.2.forward"] == (0, "✓ no error")
    assert boxes["Torch.matmul.3.forward"][1].startswith("● PROPAGATED ")
    heavy = [one.text_content() for one in page.locator("#around .edge.off title").all()]
    assert all("diverged" in one for one in heavy)
    assert any(one.startswith("Functional.softmax.1.forward → Torch.matmul.3.forward") for one in heavy)
    page.locator('#around .node[aria-label^="Torch.matmul.3.forward"]').press("Enter")
    assert around(page)[1] == "Torch.matmul.3.forward"
    assert page.locator("#operator").is_hidden(), "a click moves the graph; one on the middle opens"
    page.locator("#around .node.middle").click()
    assert page.locator("#operator h2").text_content() == "Torch.matmul.3.forward"
    page.locator("#close").click()
    page.evaluate("forPrint(true)")
    assert around(page)[1] == middle, "the first suspect's is printed"


@in_chromium
def test_a_replay_knows_no_readers_and_draws_no_graph(show):
    page = show("replay")
    assert "Mint.matmul.0.forward" in page.locator("main").inner_text()
    assert page.locator("#around").is_hidden() and "undefined" not in page.locator("main").inner_text()


@in_chromium
def test_marks_of_the_chart_do_not_contradict_its_legend(show):
    """An output above its limit that is no fault has a mark of its own; a disc there is a fault or passed on."""
    page = show("compare")
    marks = page.evaluate("chart.panels.flatMap((one) => one.marks).map((one) => [one.wrote, one.limit, one.excused,"
                          " ofOperator('cause', one.operator), ofOperator('op', one.operator)])")  # fmt: skip
    above = {op: (excused, cause) for wrote, limit, excused, cause, op in marks if wrote and limit and wrote > limit}
    assert any(cause == "BORN" for _, cause in above.values())
    assert [op for op, (excused, cause) in above.items() if not excused and not cause] == []
    assert not any(excused for wrote, limit, excused, *_ in marks if limit is None or not wrote or wrote <= limit)
    is_excused = any(excused for excused, _ in above.values())
    assert ("□ above the limit" in page.locator("#chart-key").text_content()) is is_excused


def test_each_cause_says_what_it_means_and_what_is_next(reports):
    page = unescape(page_of(reports["compare"]))
    assert f'<span class="cause" title="{compare.MEANING["BORN"]}">BORN</span>' in page
    assert f'<p class="muted next">next: {compare.NEXT["BORN"]}</p>' in page
    assert page.count('class="muted next"') == len(re.findall(r'<article class="suspect', page))
    assert f"next: {reruns.NEXT['BORN']}" in page_of(reports["rerun-diff"])
    assert {*compare.NEXT} == {*compare.MEANING} == {cause.value for cause in Cause}


@in_chromium
def test_sorts(show):
    page = show("compare")
    page.click('button[title="sort by rel_l2"]')
    down = page.evaluate('table.visible.map((row) => cell("rel_l2", row)).filter((value) => value !== null)')
    assert down == sorted(down, reverse=True) and down[0] > 1e-3
    page.click('button[title="sort by rel_l2"]')
    up = page.evaluate('table.visible.map((row) => cell("rel_l2", row)).filter((value) => value !== null)')
    assert up == sorted(up)


@in_chromium
def test_what_is_not_known_is_sorted_last(show):
    page = show("rerun-diff")
    page.click("#reset")
    for _ in range(2):
        page.click('button[title="sort by rel_l2"]')
        known = page.evaluate('table.visible.map((row) => cell("rel_l2", row) !== null)')
        assert known == sorted(known, reverse=True) and not known[-1]


@in_chromium
def test_columns_are_chosen(show):
    page = show("compare")
    page.click("summary:has-text('columns')")
    page.check("#columns label:has-text('rmse') input")
    page.uncheck("#columns label:has-text('cosine') input")
    heads = page.evaluate('[...document.querySelectorAll("#rows th")].map((one) => one.textContent)')
    assert "rmse" in heads and "cosine" not in heads


@in_chromium
def test_a_fragment_opens_its_operator(show):
    page = show("compare", "#op=Functional.softmax.1.forward")
    panel = page.locator("#operator")
    assert panel.is_visible() and panel.locator("h2").text_content() == "Functional.softmax.1.forward"
    for words in ("rel_l2 1.72e-03", "[1, 2, 4]", "Tensor.__mul__.1.forward", "make.py", "elements by relative error"):
        assert words in panel.text_content()
    page.keyboard.press("Escape")
    assert panel.is_hidden() and "#" not in page.url
    page.evaluate("location.hash = '#op=Torch.matmul.3.forward'")
    page.wait_for_function("document.querySelector('#operator h2')?.textContent === 'Torch.matmul.3.forward'")


@in_chromium
def test_the_chart_leads_to_the_operator(show):
    page = show("compare")
    x, y = page.evaluate(
        """() => {
          const one = chart.panels[0];
          const mark = one.marks.find((some) => ofOperator("place", some.operator) === 1);
          return [across(one, mark.at), heightOf(one, mark.wrote)];
        }"""
    )
    canvas = page.locator("canvas.over").first
    canvas.scroll_into_view_if_needed()
    canvas.hover(position={"x": x, "y": y})
    assert "Functional.softmax.1.forward" in page.locator("#hint").text_content()
    canvas.click(position={"x": x, "y": y})
    assert page.locator("#operator h2").text_content() == "Functional.softmax.1.forward"
    assert page.locator("#rows tr.chosen").count() == 1


@in_chromium
def test_the_map_of_ranks_leads_to_the_tensor(show):
    page = show("ranks")
    place = """() => {
      const bin = binOf(operators.op.indexOf("Tensor.__add__.4.forward")), line = rankMap.lines[1];
      return [columnX(bin) + rankMap.step / 2, line.y + line.high / 2];
    }"""
    x, y = page.evaluate(place)
    canvas = page.locator("#ranks .over")
    canvas.scroll_into_view_if_needed()
    canvas.hover(position={"x": x, "y": y})
    words = page.locator("#hint").text_content()
    assert words.startswith("Tensor.__add__.4.forwardrank 1 · output:0") and "its part differs" in words
    assert "◆ GAP, place 1" in words
    canvas.click(position={"x": x, "y": y})
    assert page.locator("#operator h2").text_content() == "Tensor.__add__.4.forward"
    assert page.locator("#rows tr.chosen").count() == 1
    assert "10 differ" in canvas.get_attribute("aria-label")
    assert page.locator("#ranks-key").text_content().count("its part differs") == 1


@in_chromium
def test_the_map_of_ranks_by_keyboard(show):
    page = show("ranks")
    page.locator("#ranks .over").focus()
    for key in ("ArrowRight", "ArrowDown", "Home", "End", "ArrowLeft"):
        page.keyboard.press(key)
    last = page.evaluate("rankMap.bins.length - 2")
    assert page.evaluate("[rankMap.cursor.line, rankMap.cursor.bin]") == [1, last]
    named = page.evaluate("ofOperator('op', rankMap.lines[1].cells[rankMap.cursor.bin].operator)")
    page.keyboard.press("Enter")
    assert page.locator("#operator h2").text_content() == named


@in_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_map_of_many_ranks_shows_the_worst_of_a_cell(show, scheme):
    page = show("many ranks", color_scheme=scheme)
    assert page.evaluate("rankMap.lines.length") <= 96 and page.evaluate("rankMap.bins.length") < 600
    found = page.evaluate(
        """() => rankMap.lines.flatMap((line) => line.cells.map((one) => [line, one]))
             .filter(([, one]) => one.state === STATE.differs)
             .map(([line, one]) => [line.label, one.rank, one.operator])"""
    )
    assert found == [["ranks 6–7", 7, 50]]
    assert page.evaluate("rankMap.lines[0].cells.at(-1).state") == page.evaluate("STATE.absent")
    assert page.evaluate("[...new Set(rankMap.lines.map((line) => line.stage))]") == [0, 1, 2, 3]
    colours = """() => {
      const line = rankMap.lines.find((one) => one.label === "ranks 6–7"), sharp = devicePixelRatio;
      const bin = line.cells.findIndex((one) => one.state === STATE.differs);
      const pen = document.querySelector("#ranks canvas").getContext("2d"), step = Math.round(rankMap.step * sharp);
      const [x, y] = [columnX(bin) + 1, line.y + 1].map((one) => Math.floor(one * sharp));
      const seen = pen.getImageData(x, y, step + 1, 1).data;
      return [[...seen.slice(0, 4)], [...seen.slice(4 * step, 4 * step + 4)]];
    }"""
    wrong, right = page.evaluate(colours)
    assert wrong[3] > 0 and wrong[0] > wrong[1] and right[3] == 0
    drawn = page.evaluate(
        "[1, 2, 3].map(() => { const from = performance.now(); drawRanks(); return performance.now() - from })"
    )
    assert min(drawn) < 300
    page.evaluate("pointAt({ line: 0, bin: binOf(rankMap.before.keys().next().value) }, 9, 9)")
    assert "collectives before these: </script><script>alert(1)</script>, " in page.locator("#hint").text_content()
    assert page.locator("#hint script, #hint img").count() == 0


@in_chromium
def test_by_keyboard(show):
    page = show("compare")
    page.keyboard.press("n")
    assert page.locator("#operator h2").text_content() == "Functional.softmax.1.forward"
    page.keyboard.press("n")
    assert page.locator("#operator h2").text_content() == "Functional.softmax.1.forward"
    page.keyboard.press("Escape")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator("#operator h2").text_content() == "Functional.layer_norm.0.forward"
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "text-filter"


@in_chromium
def test_text_for_a_ticket(show):
    page = show("compare")
    text = page.evaluate("ticket(operatorOf('#op=Functional.softmax.1.forward'))")
    for words in ("BORN  Functional.softmax.1.forward", "rel_l2 1.72e-03, limit 4.77e-07", "make.py:67", "npucmp 0."):
        assert words in text


@in_chromium
def test_hostile_names_stay_text(show):
    page = show("hostile")
    assert page.evaluate("document.querySelectorAll('img, b.bold, iframe').length") == 0
    assert cells(page, "op") == [visible(name) for name in HOSTILE]
    for name in map(visible, HOSTILE):
        page.evaluate("(name) => openOperator(operatorOf('#' + new URLSearchParams({ op: name })))", name)
        assert page.locator("#operator h2").text_content() == name
        assert page.locator("#around .node.middle").get_attribute("aria-label").startswith(f"{name}: ")
    for link in page.locator("a.name").all():
        link.evaluate("(one) => one.click()")
        assert page.locator("#operator h2").text_content() == link.text_content()


@pytest.fixture(scope="module")
def routed(tmp_path_factory):
    """The page of two layers of experts; in the second, whose name is not harmless, a token changed one of them."""
    folder = tmp_path_factory.mktemp("routed")
    logits = np.random.default_rng(3).standard_normal((20, 8)).astype(np.float32)
    ids = np.argsort(-logits, -1, kind="stable")[:, :3]
    changed = ids.copy()
    changed[7, 2] = np.argsort(-logits[7])[5]

    def run(side, *layers):
        names = ("Functional.moe_top_k.0.forward", "Functional.moe_<img src=x onerror=alert(1)>.0.forward")
        return write_run(folder / side, {name: {"in": [logits, 3], "out": [one]} for name, one in zip(names, layers)})

    report = npucmp.compare(run("target", ids, changed), run("golden", ids, ids))
    npucmp.write_reports(report, folder / "out")
    return folder / "out" / "report.html", ids[7], changed[7]


@in_chromium
def test_the_experts_of_tokens_are_a_table(chromium, routed):
    file, golden, target = routed
    with opened(file, started=chromium) as page:
        section = page.locator("section", has=page.get_by_role("heading", name="Experts of the tokens"))
        head = section.locator("th").all_text_contents()
        rows = [[text.strip() for text in row.locator("td").all_text_contents()] for row in section.locator("tr").all()]
        assert page.evaluate("document.querySelectorAll('img').length") == 0 and page.complaints == []
    sides = ("{{{}}}".format(", ".join(map(str, sorted(map(int, one))))) for one in (target, golden))
    change = "experts {} against {}".format(*sides)
    one, other = (dict(zip(head, row)) for row in rows[1:])
    assert (one["tokens"], one["changed"], one["overlap"], one["first_change"]) == ("20", "0", "1", "")
    assert (other["changed"], other["beyond_ties"], other["overlap"]) == ("1", "1", "0.9833")
    assert other["op"] == "Functional.moe_<img src=x onerror=alert(1)>.0.forward" and change in other["first_change"]


@in_chromium
def test_an_overflow_is_drawn_from_birth_on(show):
    page = show("overflow")
    steps = page.locator("#chains .step .name").all_text_contents()
    assert steps == ["Torch.exp.0.forward", "Torch.sub.0.forward", "Torch.where.0.forward"]
    assert page.locator("#chains path.born").count() == 1 and page.locator("#chains path.killed").count() == 1
    assert page.locator("#chains path.edge").count() == 2


@in_chromium
def test_the_way_to_the_limit_of_a_type_is_drawn(show):
    page = show("growing")
    shares, lanes = page.evaluate(
        "chart.panels.map((one) => one.marks.map((mark) => [mark.at, one.lanes ? mark.events[0] : mark.wrote]))"
    )
    assert [at for at, _ in shares] == [at for at, _ in lanes] == [1, 2, 3, 4]
    assert [value for _, value in shares[:3]] == pytest.approx([256 / 65504, 4096 / 65504, 65504 / 65504], rel=1e-3)
    assert shares[3][1] == float("inf") and lanes[3] == [4, ["inf", "born"]]
    heights = page.evaluate("chart.panels[0].marks.map((mark) => heightOf(chart.panels[0], mark.wrote))")
    assert heights == sorted(heights, reverse=True) and len({*heights}) == 4
    top = page.locator("canvas.over").first
    top.hover(position=page.evaluate("({ x: across(chart.panels[0], 2), y: 60 })"))
    assert "largest |x|: outputs 6.3 % of the type's largest" in page.locator("#hint").text_content()


@in_chromium
@pytest.mark.parametrize("name", ["clean", "cool"])
def test_where_nothing_is_wrong_it_says_so(show, name):
    page = show(name)
    words = {"clean": "No operator diverged: 151 tensors agree", "cool": "No tensor reaches a limit of its type."}
    assert words[name] in page.locator(".answer").text_content()
    assert page.locator("#table").is_visible() == (name == "clean")


@in_chromium
def test_a_fused_operator_stands_beside_its_originals(show):
    page = show("fusion-diff")
    first = page.locator(".fused").first
    assert "BORN" in first.text_content() and "AddReluFusionPass" in first.text_content()
    chain, fused = (one.locator(".box") for one in first.locator(".originals").all())
    assert chain.all_text_contents() == ["net/block_0/add", "net/block_0/Relufloat16 0 to 3.7"]
    assert fused.all_text_contents() == ["Eltwise by AddReluFusionPassfloat16 0 to 3.7"]
    assert first.locator(".outcome").text_content() == "✗ divergedrel_l2 8.0e-03"
    assert page.locator(".compared-here").count() == 2 * page.locator(".fused").count()
    edges = [one.bounding_box() for one in first.locator(".originals").all()]
    assert edges[0]["width"] == edges[1]["width"] and edges[0]["x"] == edges[1]["x"], "not one below the other"
    assert '"AddReluFusionPass": "off"' in page.locator("pre").first.text_content()


@in_chromium
def test_runs_that_stand_apart_are_marked(show):
    page = show("rerun-diff")
    first = page.locator(".answer .suspect").first
    assert "Mint.index_add.0.forward" in first.text_content() and "no two runs agree" in first.text_content()
    assert "elements differ" in first.text_content()
    where, bits = first.locator(".difference-map svg").all()
    assert where.get_attribute("aria-label").startswith("70 of 24 × 8 elements differ, in ")
    assert bits.get_attribute("aria-label") == "differing bits of float32: mantissa 0 to 8"
    box = where.bounding_box()
    assert box["width"] > 250 and box["height"] > 80
    assert page.locator('select[aria-label="filter by run"] option').count() == 3


@in_chromium
def test_prints_dark_pages_in_light_colours_and_all_columns(show):
    page = show("compare", color_scheme="dark")
    page.set_viewport_size({"width": 760, "height": 900})
    page.emulate_media(media="print")
    page.evaluate("forPrint(true)")
    colour = "getComputedStyle(document.documentElement).getPropertyValue('--bad-paper').trim()"
    assert page.evaluate(colour) == "#fdecea"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "columns are cut off"
    assert page.locator("#filters").is_hidden() and page.locator("#zoom-in").is_hidden()


@in_chromium
def test_prints_rows_without_a_window(show):
    page = show("large")
    page.evaluate("forPrint(true)")
    assert page.locator("#rows tbody tr:not([aria-hidden])").count() == 200
    page.evaluate("forPrint(false)")
    assert page.locator("#rows tbody tr").count() < 60
