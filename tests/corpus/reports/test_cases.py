"""The cases of public reports, and a few drawn cases of each kind, are answered rightly."""

import pytest

from tests.corpus.answers.sheets import here, kept
from tests.corpus.reports import case
from tests.corpus.reports.kinds import KINDS, write_case

LARGE = ("c_cann_clean_weights_only_in_golden", "c_cann_fused_conv_wrong_eps")
CASES = case.paths() | {name: case.GIVEN / name for name in LARGE if (case.GIVEN / name).exists()}
ANSWERS = kept()
CASE_OF = {name: name.split("/")[1] for name in ANSWERS if name.startswith("reports/")}
KEPT = {*CASE_OF.values()} - {CASE_OF[name] for name in CASE_OF.keys() - {*here()}}  # test_golden.py asks them


def test_no_kept_answer_is_wrong():
    assert not [name for name, answer in ANSWERS.items() if "wrong" in answer]


@pytest.mark.parametrize("name", sorted({*CASES} - KEPT))
def test_case(name):
    assert case.wrong_answers(CASES[name]) == []


@pytest.mark.few(48)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_drawn_case(kind, seed, tmp_path):
    write_case(kind, seed, tmp_path / "case")
    assert case.wrong_answers(tmp_path / "case") == []
