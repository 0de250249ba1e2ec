"""The views over the steps on report.html: a heat map of operators × steps, and curves of tensors of both runs."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np
import pytest

import npucmp
from npucmp.report import answer_of, html
from npucmp.report.step_series import ABSENT, BEYOND, EQUAL, SteppedOperators, SteppedTensors, StepSlice, series_data
from tests.browser import browser, opened, skip_reason
from tests.report.steps import train
from tests.report.test_html import HOSTILE, Elements

LAYER = "Module.model.layers.1.linear.Linear.forward.0"
in_chromium = pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "a browser is here")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps")
    return train(folder / "target", faulty=3), train(folder / "golden")


@pytest.fixture(scope="module")
def report(dumps):
    return npucmp.compare(*dumps)


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_bytes(page_of(report))
    return file


def page_of(report) -> bytes:
    return html.render(answer_of(report))["report.html"]


def series_of(text: str):
    (found,) = (json.loads(one[2]) for one in Elements(text).texts if one[1].get("id") == "series")
    return json.loads(zlib.decompress(base64.b64decode(found["deflate"]))) if "deflate" in found else found


def column(table, name):
    found = table["columns"].get(name, {"all": None})
    if "codes" in found:
        return [found["words"][code] for code in found["codes"]]
    return found.get("values") or [found["all"]] * table["length"]


def test_levels_are_those_of_each_step(page):
    series = series_of(page.read_text())
    names = column(series["operators"], "op")
    assert series["steps"] == [0, 1, 2, 3, 4, 5] and len(names) == 6
    (levels,) = series["levels"]
    at = names.index(LAYER)
    assert [int(one[at]) for one in levels[:3]] == [EQUAL] * 3 and {int(one[at]) for one in levels[3:]} == {BEYOND}
    born = next(one for one in series["marks"] if one[4] == "BORN")
    assert (names[born[1]], series["steps"][born[3]]) == (LAYER, 3)


def test_figures_are_those_of_the_values(dumps, page):
    series = series_of(page.read_text())
    tensors = [*zip(column(series["tensors"], "name"), column(series["tensors"], "slot"))]
    kinds = dict(zip(tensors, column(series["tensors"], "kind")))
    assert kinds[LAYER, "param:weight"] == "parameter" and kinds[LAYER, "output:0"] == "activation"
    assert "gradient" in kinds.values()
    number = tensors.index((LAYER, "output:0"))
    for side, dump in zip(("target", "golden"), dumps):
        for step in range(6):
            folder = dump / f"step{step}" / "proc1" / "dump_tensor_data"
            values = np.load(folder / f"{LAYER}.output.0.npy").astype(np.float64)
            wanted = {
                "l2": np.sqrt((values**2).sum()), "mean": values.mean(), "min": values.min(), "max": values.max()
            }  # fmt: skip
            for name, figure in wanted.items():
                own = column(series["figures"], f"{side}_{name}")[step * len(tensors) + number]
                assert own == pytest.approx(figure, rel=5e-6, abs=1e-9)
    assert [one[2] for one in series["errors"] if one[0] == number] == [3, 4, 5]


def slice_of(step, name, slot, level, figures, marks=()):
    """The slice of a step with one operator and one tensor."""
    operators, tensors = (
        SteppedOperators((name,), (name,), ("",), (step,)),
        SteppedTensors((name,), (slot,), ("activation",)),
    )
    known = np.array([[figure is not None for figure in figures]])
    cells = np.array([figures], np.float64)
    return StepSlice(step, None, operators, tensors, np.array([level], np.uint8), marks, cells, known, {})


def test_one_step_has_no_series(dumps):
    assert 'id="series"' not in page_of(npucmp.compare(*dumps, step=3)).decode()


@pytest.mark.parametrize("name", HOSTILE)
def test_names_cannot_end_the_element(name):
    slices = [slice_of(step, name, name, BEYOND, (1.0,) * 8, [(0, "BORN", 1)]) for step in (0, 1)]
    text = html._series_json(series_data(slices))
    assert not {"<", ">", "&"} & {*text} and text.isascii()
    assert json.loads(text)["steps"] == [0, 1]


def test_figures_that_are_not_finite_and_steps_without_a_tensor():
    odd = (float("nan"), float("inf"), -1e300, 0.0) * 2
    slices = [slice_of(0, "a", "output:0", EQUAL, (None,) * 8), slice_of(7, "b", "output:0", EQUAL, odd)]
    found = series_data(slices)
    assert found["levels"] == [[f"{EQUAL}{ABSENT}", f"{ABSENT}{EQUAL}"]]
    assert column(found["figures"], "target_l2") == [None, None, None, "NaN"]
    assert column(found["figures"], "golden_mean")[3] == "Infinity"


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@in_chromium
@pytest.mark.parametrize("scheme, width", [("light", 1280), ("dark", 420)])
def test_heat_map_and_curves(chromium, page, scheme, width):
    with opened(page, started=chromium, color_scheme=scheme) as shown:
        shown.set_viewport_size({"width": width, "height": 900})
        assert not shown.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert shown.locator("#heat [data-line]").count() == 5
        marks = shown.locator("#heat td", has_text="◆")
        assert marks.count() == 2 and "BORN" in marks.last.get_attribute("aria-label")
        assert shown.locator("#curves-title").inner_text() == f"{LAYER} output:0"
        assert shown.locator("#curves-plots path.curve").count() == 8
        folded = shown.locator("#heat [aria-expanded=false] button")
        folded.click()
        assert shown.locator("#heat [data-line]").count() == 8
        shown.keyboard.press("ArrowDown")
        shown.keyboard.press("Enter")
        assert "backward" in shown.locator("#curves-title").inner_text()
        shown.locator("#curves-kind").select_option("parameter")
        assert shown.locator("#curves-list option").count() == 3
        shown.fill("#curves-search", "layers.2")
        shown.locator("#curves-list").select_option(index=0)
        assert shown.locator("#curves-title").inner_text().endswith("layers.2.linear.Linear.forward.0 param:weight")
        assert shown.complaints == []
