"""Tensors and operators of ranks: what is known of their contents, and how they are lined up with the golden's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.relations import held_values
from npucmp.relations.held_values import Values
from npucmp.relations.ranks import rank_run
from tests.align.rank_craft import held, numbers, rank_of

GRADIENT = numbers(3, 4)


def test_contents_of_tensors_with_nan(tmp_path):
    """As many NaN and infinities, and equal other values."""
    first, *others = held(tmp_path, *np.float32([
        [np.nan, 0.3, 1.7, 2.0], [np.nan, 0.3, 1.7, 2.1], [np.nan, np.nan, 1.7, 2.0], [np.inf, 0.3, 1.7, 2.0],
        [-np.inf, 0.3, 1.7, 2.0],
    ]))  # fmt: skip
    contents = [one.content for one in (first, *others)]
    assert len({*contents}) == 5 and None not in contents
    run = rank_of(
        tmp_path / "run", [("Torch.log.0.forward", [], [first.array]), ("Torch.abs.0.forward", [first.array], [])]
    )
    assert run.origin(run.operators[1].inputs[0]).operator is run.operators[0]


# Micro batches and updates


@pytest.mark.parametrize(
    "line, function, count", [(40, "step", 2), (72, "step", 2), (40, "backward", 1), (72, "backward", 1)]
)
def test_a_network_is_called_at_two_lines(tmp_path, line, function, count):
    """A stage receives tokens of a prompt, then of a step of decoding, or computes a layer again."""

    def stack(line, function):
        return ("File m.py, line 7, in norm, \n x.pow(2)", f"File m.py, line {line}, in {function}, \n x = f({line})")

    names = ["Distributed.recv.0", "Torch.sin.0", "Torch.linear.0", "Distributed.recv.1", "Torch.sin.1"]
    run = rank_of(tmp_path, [(f"{name}.forward", [GRADIENT, GRADIENT], []) for name in names]).run
    stacks = [(), stack(40, "step"), stack(41, "step"), (), stack(line, function)]
    run = replace(run, operators=tuple(op._replace(stack=one) for op, one in zip(run.operators, stacks)))
    assert len(rank_run.RankRun(run, 0, Values(ANYWHERE)).micro_batches) == count


# Values


def test_complex_numbers_and_large_tensors_have_no_array(tmp_path, monkeypatch):
    one, large, fits = held(tmp_path, np.array([1j]), numbers(9), numbers(8))
    monkeypatch.setattr(held_values, "WHOLE", 8)
    assert one.array is None and large.array is None and fits.array is not None
