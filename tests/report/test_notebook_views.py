"""Drawings of results in a notebook: report.plot(), report.graph(), report.steps(name)."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import npucmp
from npucmp.errors import UsageError
from tests.browser import opened, skip_reason
from tests.report.steps import train
from tests.reports import large, layered, named

in_chromium = pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "a browser is here")
LAYER = "Module.model.layers.1.linear.Linear.forward.0"


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps")
    return train(folder / "target", faulty=3), train(folder / "golden")


@pytest.fixture(scope="module")
def report(dumps):
    return npucmp.compare(*dumps)


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.text = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def harmless(html):
    found = Tags(html)
    assert {tag for tag, _ in found.seen} <= {
        "div",
        "p",
        "b",
        "small",
        "span",
        "code",
        "svg",
        "line",
        "text",
        "polyline",
        "circle",
    }
    assert not [
        key for _, attributes in found.seen for key in attributes if key.startswith("on") or key in ("src", "href")
    ]
    return found


def test_plot_has_a_dot_per_operator_with_an_error(report):
    found = harmless(report.plot()._repr_html_())
    words = "".join(found.text)
    assert words.startswith("DIVERGED") and "The error along the network" in words and "suspects" in words
    assert "npucmp compare" in repr(report.plot())


def test_steps_has_both_runs(dumps, report):
    view = report.steps("layers.1.linear output:0")
    found = harmless(view.html)
    words = "".join(found.text)
    assert f"{LAYER} output:0" in words and "target" in words and "golden" in words
    lines = [one["points"] for tag, one in found.seen if tag == "polyline"]
    assert len(lines) == 8 and {len(one.split()) for one in lines} == {6}
    heights = [[float(point.split(",")[1]) for point in one.split()] for one in lines[:2]]
    norms = [
        [np.linalg.norm(np.load(dump / f"step{step}/proc1/dump_tensor_data/{LAYER}.output.0.npy").astype(np.float64))
         for step in range(6)]
        for dump in dumps
    ]  # fmt: skip
    both, seen = np.ravel(norms), np.ravel(heights)
    slope = (seen[both.argmax()] - seen[both.argmin()]) / (both.max() - both.min())
    assert slope < 0 and np.allclose(seen, seen[both.argmin()] + slope * (both - both.min()), atol=0.2)
    assert report.steps(LAYER).html == view.html


def test_a_run_has_its_own_curves(dumps):
    found = harmless(npucmp.check(dumps[0]).steps("layers.0.linear.weight").html)
    assert len([tag for tag, _ in found.seen if tag == "polyline"]) == 4


def test_names_that_are_unknown_and_results_without_steps(dumps, report):
    with pytest.raises(UsageError, match=r"no tensor 'layer.9' has figures of several steps; nearest"):
        report.steps("layer.9")
    with pytest.raises(UsageError, match="there is no rank 3"):
        report.steps(LAYER, rank=3)
    with pytest.raises(UsageError, match="several steps"):
        npucmp.compare(*dumps, step=0).steps(LAYER)
    for draw in (npucmp.precheck(*dumps).graph, npucmp.overflow(dumps[0]).plot):
        with pytest.raises(UsageError):
            draw()


def test_text_of_dumps_stays_text():
    hostile = named("<script>alert(1)</script>", "\"'><b>bold</b>", "a\u202eb", because="<img src=x onerror=alert(1)>")
    harmless(hostile.plot().html)
    frame = hostile.graph().html
    (tags,) = (Tags(frame).seen,)
    assert [tag for tag, _ in tags] == ["iframe"] and tags[0][1]["sandbox"] == "allow-scripts"
    assert len(large(3000).plot().html) < 300_000


@in_chromium
def test_the_graph_runs_in_its_frame(tmp_path, report):
    for number, one in enumerate((layered(300), report)):
        file = tmp_path / f"{number}.html"
        file.write_text(f"<!doctype html><html data-ready>{one.graph().html}</html>", encoding="utf-8")
        with opened(file) as page:
            frame = page.frame_locator("iframe")
            frame.locator("#whole-graph .node", has_text="BORN").first.wait_for(timeout=10_000)
            assert not frame.locator("#table").is_visible() and not frame.locator("header.verdict").is_visible()
            frame.locator("#whole-graph .node", has_text="BORN").last.click()
            assert frame.locator("#operator h2").inner_text()
            frame.locator("#close").click()
            assert [words for words in page.complaints if not re.match("about:srcdoc", words)] == []
