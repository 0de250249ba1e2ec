"""The rank of wrong elements of a checkpoint that ranks hold in parts and in copies."""

import pytest

import npucmp
from tests.corpus.composed.cases import Case

ALONE = "in the part of rank {} alone"
KINDS = {"factor": ALONE, "same shard": "is that of rank", "copies differ": ALONE}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network, seed", [("gpt2", 0), ("llama", 2)])
def test_the_rank_of_wrong_elements_is_named(tmp_path, network, seed, kind):
    written = Case("weights_ranks", network, seed, kind).make(str(tmp_path))
    root, *_ = npucmp.compare(written.target, written.golden).roots
    assert root.rank == written.truth.rank and root.rank is not None
    assert KINDS[kind].format(root.rank) in root.because
