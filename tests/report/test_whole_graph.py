"""The graph of the whole network on report.html: folded by module, open where the error begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import npucmp
from npucmp.model import Verdict
from npucmp.report import answer_of, html
from tests.benchmarks.graph import CLICKS
from tests.browser import browser, opened, skip_reason
from tests.reports import layered, named

SAMPLES = Path(__file__).parent.parent.parent / "sample_dumps"
FOLDED = "[aria-expanded=false]"
pytestmark = pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "a browser is here")


def page_of(report) -> bytes:
    return html.render(answer_of(report))["report.html"]


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture
def show(chromium, folder):
    shown = []

    def show(report, **settings):
        file = folder / f"{len([*folder.iterdir()])}.html"
        file.write_bytes(page_of(report))
        context = opened(file, started=chromium, **settings)
        shown.append((context, context.__enter__()))
        return shown[-1][1]

    yield show
    complaints = [words for _, page in shown for words in page.complaints]
    for context, _ in shown:
        context.__exit__(None, None, None)
    assert complaints == []


def labels(page, which="[role=treeitem]"):
    return page.eval_on_selector_all(f"#whole-graph {which}", "all => all.map((one) => one.getAttribute('aria-label'))")


def compared(name):
    return npucmp.compare(SAMPLES / name / "target", SAMPLES / name / "golden")


def test_modules_are_folded_but_where_the_error_begins(show):
    page = show(compared("msprobe_tokens"))
    found = labels(page)
    assert found[0].startswith("layers: BORN · place 1")
    (born,) = (one for one in found if "BORN" in one and "core.Attention" in one)
    assert labels(page, FOLDED) == ["layers.0: agrees · 9 operators"]
    assert page.locator(".edge.off").count() >= 1 and page.locator(".edge").count() > 10
    page.locator("#whole-close").click()
    assert len(labels(page)) < 10 and born not in labels(page)
    page.locator("#whole-first").click()
    assert born in labels(page)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == born


def test_a_click_opens_a_module_and_its_operators(show):
    page = show(compared("msprobe_tokens"))
    (layer,) = labels(page, FOLDED)
    page.locator(f'[aria-label="{layer}"]').click()
    assert any(one.startswith("input_layernorm.LlamaRMSNorm") for one in labels(page))
    page.locator("#whole-graph .node", has_text="core.Attention").last.click()
    assert "core.Attention" in page.locator("#operator h2").inner_text()


def test_keys_walk_open_and_close(show):
    page = show(layered(400))
    page.locator("#whole-graph [tabindex='0']").focus()

    def here():
        return page.evaluate("document.activeElement.getAttribute('aria-label') ?? ''")

    assert "BORN · place 1" in here()
    page.keyboard.press("ArrowLeft")
    module = here()
    page.keyboard.press("ArrowLeft")
    assert here() == module and module in labels(page, FOLDED)
    page.keyboard.press("Enter")
    assert module not in labels(page, FOLDED)
    page.keyboard.press("Home")
    assert here().startswith("layers.0")
    page.keyboard.press("ArrowDown")
    assert here().startswith("layers.1:")


def test_search_opens_the_way_to_an_operator(show):
    page = show(layered(400))
    page.fill("#whole-search", "layers.7. q_proj")
    assert page.locator("#whole-found").inner_text() == "1 of 1"
    assert page.locator(".node.hit").count() == 1 and page.locator(".node.hit").is_visible()
    page.fill("#whole-search", "v_proj")
    page.keyboard.press("Enter")
    assert page.locator("#whole-found").inner_text() == "2 of 40"
    page.fill("#whole-search", "nothing like it")
    assert page.locator("#whole-found").inner_text() == "no match"


def test_colours_by_error_name_the_distance_from_the_limit(show):
    page = show(layered(400))
    page.locator("#whole-colour input[value=error]").check()
    assert any("× its limit" in one for one in labels(page)) and not any("BORN" in one for one in labels(page))


def test_a_module_that_is_not_decided_as_a_whole_does_not_agree(show):
    report = layered(100)
    (one,) = report.comparisons
    missing = [f._replace(verdict=Verdict.MISSING, error=None) if f.pair.order == 13 else f for f in one.findings]
    page = show(replace(report, comparisons=(replace(one, findings=tuple(missing)),)))
    (layer,) = (found for found in labels(page) if found.startswith("layers.1:"))
    assert layer == "layers.1: 9 of 10 agree · 1 not decided"


def test_names_without_modules_become_stretches(show):
    """Names of functions occur all over the network, so they are no modules."""
    page = show(compared("msprobe_softmax"))
    assert labels(page)[0].startswith("forward: BORN")
    assert any(one.startswith("Functional.softmax.1.forward: BORN · place 1") for one in labels(page))


def test_hostile_names_stay_text(show):
    page = show(
        named("<img src=x onerror=alert(2)>", "a.<b>.c", "a/b/c", "", "__proto__", "\u202e\x00.x.y", "constructor")
    )
    assert page.locator("#whole img").count() == 0 and page.locator("#whole").is_visible()


@pytest.mark.parametrize("width", [420, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_never_wider_than_the_screen(show, width, scheme):
    page = show(layered(200), color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")


def test_10000_operators_stay_fluent(show):
    report = layered(10_000)
    page = show(report)
    for _ in range(4):  # the machine may be busy with other work
        taken = page.evaluate(CLICKS)
        if max(taken["worst click"], taken["worst, crowded"], taken["search"]) <= 100:
            break
    else:
        pytest.fail(f"clicks take {taken} ms")
    assert page.evaluate("document.querySelectorAll('#whole-graph *').length") < 2_000
