"""Mixtures of experts that are split over ranks, against the same network on one rank."""

from __future__ import annotations

import csv

import pytest

import npucmp
from tests.command import npucmp as run
from tests.corpus.parallel.cases import LAYOUTS, Case, make
from tests.corpus.parallel.faults import Fault
from tests.corpus.parallel.networks import Design

SMALL = Design(batch=4, length=8, width=16, heads=4, keys=4, layers=2, inner=24, words=48, experts=4)


def pair(folder, layout, fault=Fault(), truth=(), seed=5, **options):
    design = SMALL._replace(permuted=LAYOUTS[layout].exchange, apart=LAYOUTS[layout].tp > 1)
    return make(Case("pair", LAYOUTS[layout], design, fault, truth, seed=seed, **options), folder)


@pytest.mark.few(1)
@pytest.mark.parametrize("layout", ["tp2_ep2", "ep2_exchange", "tp2_ep2_exchange"])
@pytest.mark.parametrize("seed", [5, 6])
def test_no_operator_of_clean_runs_in_bfloat16_is_named(tmp_path, layout, seed):
    """Near ties of a router flip, so that an expert gets another number of tokens: they are not compared."""
    written = pair(tmp_path, layout, seed=seed, base="bfloat16")
    report = npucmp.compare(written.target, written.golden, jobs=1)
    assert not report.roots and report.exit_status in (0, 2)


def test_placements_name_the_rank_of_an_expert_and_the_order_of_its_tokens(tmp_path):
    written = pair(tmp_path, "ep2_exchange")
    assert run("compare", written.target, written.golden, "-o", tmp_path / "out").returncode == 0
    with open(tmp_path / "out" / "placements.csv", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["placement"].startswith("rows(0)")]
    assert {row["ranks"] for row in rows} == {"0", "1", "0-1"}
