"""The cases of public reports, and a few drawn cases of each kind, are answered rightly."""

import pytest

from tests.corpus.reports import case
from tests.corpus.reports.kinds import KINDS, write_case

LARGE = ("c_cann_clean_weights_only_in_golden", "c_cann_fused_conv_wrong_eps")
CASES = case.paths() | {name: case.GIVEN / name for name in LARGE if (case.GIVEN / name).exists()}


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    assert case.wrong_answers(CASES[name]) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_drawn_case(kind, seed, tmp_path):
    write_case(kind, seed, tmp_path / "case")
    assert case.wrong_answers(tmp_path / "case") == []
