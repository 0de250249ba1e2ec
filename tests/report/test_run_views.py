"""The page of `npucmp check`: the network with its findings, and its tensors over the steps."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp
from npucmp.report import answer_of, html
from tests.browser import opened, skip_reason
from tests.report.steps import train
from tests.report.test_html import data_of
from tests.report.test_over_steps import column, series_of
from tests.synthetic import write_run

in_chromium = pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "a browser is here")
BORN = "Module.model.layers.1.linear.Linear.forward.0"


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    return train(tmp_path_factory.mktemp("run") / "dump", nan_at=(5, 1))


@pytest.fixture(scope="module")
def report(dump):
    return npucmp.check(dump)


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_bytes(html.render(answer_of(report))["report.html"])
    return file


def test_the_graph_has_operators_producers_and_findings(report, page):
    graph = data_of(page.read_text())["graph"]
    assert len(graph["op"]) == 6 and report.exit_status == 1
    edges = {(graph["op"][a], graph["op"][b]) for a, b in zip(graph["from"], graph["to"])}
    layers = [f"Module.model.layers.{at}.linear.Linear.forward.0" for at in range(3)]
    assert {*zip(layers, layers[1:])} <= edges
    assert graph["cause"][graph["op"].index(BORN)] == "error"


def test_curves_are_those_of_the_values(dump, page):
    series = series_of(page.read_text())
    tensors = [*zip(column(series["tensors"], "name"), column(series["tensors"], "slot"))]
    assert series["sides"] == ["run"] and series["steps"] == [*range(6)]
    for key, file in ((("model.layers.0.linear.weight", None), "0.linear.Linear.forward.0.parameters.weight"),
                      ((BORN, "output:0"), "1.linear.Linear.forward.0.output.0")):  # fmt: skip
        number = tensors.index(key)
        for step in range(6):
            name = f"Module.model.layers.{file}.npy"
            values = np.load(dump / f"step{step}" / "proc1" / "dump_tensor_data" / name).astype(np.float64)
            values = values[np.isfinite(values)]
            wanted = {"l2": np.sqrt((values**2).sum()), "mean": values.mean(), "min": values.min(), "max": values.max()}
            for name, figure in wanted.items():
                own = column(series["figures"], f"run_{name}")[step * len(tensors) + number]
                assert own == pytest.approx(figure, rel=1e-5, abs=1e-7)


def test_one_step_has_a_graph_and_no_curves(tmp_path):
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    run = write_run(tmp_path, {"Functional.relu.0.forward": {"in": [x], "out": [x]}})
    text = html.render(answer_of(npucmp.check(run)))["report.html"].decode()
    assert data_of(text)["graph"]["op"] == ["Functional.relu.0.forward"] and 'id="series"' not in text


@in_chromium
@pytest.mark.parametrize("scheme, width", [("dark", 1280), ("light", 420)])
def test_graph_and_curves_of_a_run(page, scheme, width):
    with opened(page, color_scheme=scheme) as shown:
        shown.set_viewport_size({"width": width, "height": 900})
        assert not shown.evaluate("document.documentElement.scrollWidth > innerWidth")
        node = shown.locator("#whole-graph .node", has_text="place 1")
        assert "error" in node.get_attribute("aria-label")
        assert shown.locator("#heat td", has_text="✗").count() >= 1
        shown.locator("#whole-graph .node", has_text="2.linear").last.click()
        shown.locator("#curves-kind").select_option("gradient")
        shown.locator("#curves-list").select_option(index=0)
        assert shown.locator("#curves-plots path.curve").count() == 4
        assert shown.complaints == []
