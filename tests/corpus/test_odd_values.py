"""Pairs with odd values or an odd structure: no command ends with an unexpected error, and the search sees one."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

from tests.corpus import odd_values
from tests.corpus.odd_values import main, tried

RUNS = 8


def test_no_command_fails_on_odd_values(tmp_path):
    found = [tried(1, number, tmp_path) for number in range(RUNS)]
    assert not [one for one in found if one.wrong]
    assert len({one.command for one in found}) > 3


def test_an_error_and_a_warning_are_wrong(tmp_path, monkeypatch, capsys):
    def warn(*_):
        return np.float32(3e38) * np.float32(10.0)

    for command, words in ((lambda *_: [][1], "IndexError"), (warn, "RuntimeWarning")):
        monkeypatch.setattr(odd_values, "COMMANDS", {"compare": command})
        assert words in tried(1, 0, tmp_path).wrong
        assert main(["--runs", "2"]) == 1
        assert words in capsys.readouterr().out


def test_agreement_over_nan_of_one_side_is_wrong(tmp_path, monkeypatch):
    result = SimpleNamespace(exit_status=0)
    monkeypatch.setattr(odd_values, "PAIRS", ["sample/npy_batch_norm"])
    monkeypatch.setattr(odd_values, "COMMANDS", {"compare": lambda *_: result})
    monkeypatch.setattr(odd_values.npucmp, "write_reports", lambda *_: None)
    wrong = [tried(1, number, tmp_path).wrong for number in range(40)]
    assert 3 <= sum("agrees over" in one for one in wrong) < 40


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
def test_planted_values_are_reported_if_they_became_odd(dtype):
    became = set()
    for seed in range(60):
        values = np.ones((3, 4), dtype)
        told = odd_values._plant_values(values, random.Random(seed))
        assert told == (not np.isfinite(values).all())
        became.add(told)
    assert became == {True, False}
