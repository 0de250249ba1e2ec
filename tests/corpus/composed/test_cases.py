"""Clean pairs are equal when the generator puts them together, and each fault changes what it says."""

from __future__ import annotations

import numpy as np
import pytest

from tests.corpus.composed import checkpoints, decoders, images
from tests.corpus.composed.assembled import assembled, errors
from tests.corpus.composed.cases import COMBINATIONS, KEPT, OPEN, Case, fault_kinds, networks

ROUNDING = {"float32": 2e-5, "bfloat16": 6e-2}
CHANGE = {"float32": 1e-4, "bfloat16": 2e-2}
PAIRS = [(combination, network) for combination in decoders.COMBINATIONS for network in decoders.NETWORKS]


@pytest.mark.parametrize(("combination", "network"), PAIRS)
def test_decoders_are_equal_and_faults_strike(combination, network):
    clean = decoders.sides(combination, network, 0)
    golden = assembled(clean.golden)
    distances = errors(clean.target, golden)
    assert len(distances) > 10
    assert max(distance.max() for distance in distances.values()) < ROUNDING[clean.pair.dtype]
    for kind in fault_kinds(combination, network, 0):
        assert_strikes(decoders.sides(combination, network, 0, kind, clean.golden), golden)


def assert_strikes(made: decoders.Sides, golden: dict[str, list[np.ndarray]]) -> None:
    """The first token that a fault changes at its place is the one that it names."""
    fault, requests = made.fault, made.pair.requests
    assert fault is not None
    truth = decoders.truth(made)
    assert truth is not None and truth.names
    distances = errors(made.target, golden)
    if fault.place not in distances:  # a fused kernel makes it; the next product shows it
        assert fault.kind in ("unreduced", "zero slice", "factor")
        return
    wrong = distances[fault.place] > CHANGE[made.pair.dtype]
    assert wrong.any()
    if fault.request is not None:
        row = np.nonzero(requests.real)[0][int(wrong.argmax())]
        assert divmod(int(row), requests.width) == (fault.request, fault.position)


@pytest.mark.parametrize("network", images.NETWORKS)
def test_images_are_equal_and_faults_strike(network):
    clean = images.sides(network, 1)
    for target, golden in zip(clean.target, clean.golden):
        np.testing.assert_allclose(target.output[clean.kept], golden.output, atol=ROUNDING[clean.dtype] * 10)
    for kind in images.KINDS:
        made = images.sides(network, 1, kind)
        assert made.fault is not None
        outputs = {operator.name: operator.output for operator in made.target}
        right = {operator.name: operator.output for operator in made.golden}[made.fault.name]
        wrong = outputs[made.fault.name][made.kept]
        assert np.abs(wrong - right).max() > 1e-2 * np.abs(right).max()


@pytest.mark.parametrize("network", checkpoints.NETWORKS)
def test_checkpoints_hold_the_network_and_faults_strike(network):
    for seed in (0, 1):
        clean = checkpoints.sides(network, seed)
        values = np.sort(np.concatenate([one.values.reshape(-1) for ranks in clean.golden for one in ranks.values()]))
        for tensors in clean.target:
            for name, one in tensors.items():
                if "embedding" in name or "output_layer" in name:
                    continue  # they are padded
                near = np.searchsorted(values, one.values.reshape(-1)).clip(1, len(values) - 1)
                distance = np.minimum(*(np.abs(values[near - at] - one.values.reshape(-1)) for at in (0, 1)))
                assert (distance <= 2.0**-8 * np.abs(one.values.reshape(-1)) + 1e-9).all()
        for kind in checkpoints.KINDS:
            made = checkpoints.sides(network, seed, kind)
            assert made.fault is not None
            _, name, rank = made.fault
            changed = [
                number
                for number, (own, right) in enumerate(zip(made.target, clean.target))
                if not np.array_equal(own[name].values, right[name].values)
            ]
            assert changed == [0, 1] if rank is None else changed == [rank]
            assert len(checkpoints.right_names(made.golden[0], name)) in (2, 3, 4)


def test_pairs_are_written(tmp_path):
    for combination in ("tp_packed", "tp_frameworks", *COMBINATIONS[-2:]):
        network = networks(combination)[0]
        kind = fault_kinds(combination, network, 0)[0]
        written = Case(combination, network, 0, kind).make(str(tmp_path / combination))
        assert any(written.target.rglob("*.*")) and any(written.golden.rglob("*.*")) and written.truth is not None
    assert not {*OPEN} & {*KEPT}
