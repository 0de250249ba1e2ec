"""Each rule is needed: without it, one pair of the corpus is answered otherwise than it should be."""

from __future__ import annotations

import pytest

from npucmp.localise.rules import RULES
from tests.corpus import score
from tests.corpus.planter import family
from tests.corpus.subject import asked

PAIRS = {  # rule → a pair that it decides
    "round_off": "sample/0/clean0",
    "reduced": "sample/48/clean",
    "growth": "sample/1/clean",
    "non_smooth": "sample/20/clean",
    "choice": "sample/20/clean",
    "cancellation": "sample/0/clean",
    "scaled": "sample/6/4",
    "arguments": "sample/38/3",
    "equal_bits": "open/23/11",
    "parameter": "sample/89/3",
    "background": "sample/1/clean",
    "meaningless": "open/29/clean",
}
GOOD = ("right", "silent")


def test_every_rule_has_a_pair():
    assert set(PAIRS) == {rule.name for rule in RULES}


@pytest.mark.parametrize("rule", PAIRS)
def test_without_the_rule_the_pair_is_answered_otherwise(tmp_path, rule):
    domain, number, _ = PAIRS[rule].split("/")
    some = family(domain, int(number), 4)
    [case] = [one for one in some.cases if one.name == PAIRS[rule]]
    score.write(tmp_path / "golden", some.golden, some.style)
    score.write(tmp_path / "target", case.target, some.style)
    names = score.accepted_names(case, some.golden, some.style)
    said = [
        score.grade(asked(tmp_path / "target", tmp_path / "golden", skip), case.truth, names) for skip in ((), (rule,))
    ]
    assert said[0] in GOOD and said[1] not in GOOD, said
