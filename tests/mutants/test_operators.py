"""The faults that `python -m tests.mutants` plants, and that each is one change of one place."""

from __future__ import annotations

import ast

import pytest
import yaml

from tests.mutants.__main__ import EQUIVALENT, ROOT
from tests.mutants.operators import OPERATORS, mutant_at, places_of

CASES = {
    "if a < 1:\n    b(c, d)\n": {
        "if (a >= 1):", "if (a <= 1):", "if a < 2:", "if a < 0:", "pass", "b(d, c)",
    },
    "def f():\n    return [a and not b]\n": {"return [(a or not b)]", "return [a and b]", "return []"},
    "def f(a: int = 0.5) -> Literal[3]:\n    return 'é' in a\n": {
        "def f(a: int = 1.0) -> Literal[3]:", "return ('é' not in a)", "return False",
    },
    "if TYPE_CHECKING:\n    a = 1\n": set(),
    "@cache(1)\ndef f():\n    '''3 < 4'''\n    return None\n": set(),
    "A = 3  # rows: chosen: any\n": {"A = 4  # rows: chosen: any", "A = 2  # rows: chosen: any"},
    "A = 3  # rows: work\n": set(),
    "f(*a, b)\nf(a, a)\nmax(a, b)\nnp.minimum(a, b)\n": set(),
}  # fmt: skip


@pytest.mark.parametrize("text", CASES)
def test_the_faults_of_a_text(text):
    found = [mutant_at(place) for place in places_of(text)]
    assert {one.after.strip() for one in found} == CASES[text]
    for one in found:
        assert one.operator in OPERATORS and ast.dump(ast.parse(one.text)) != ast.dump(ast.parse(text))
        assert len(one.text.splitlines()) <= len(text.splitlines())
        assert one.before in text and one.diff("f.py").count("\n+") == 1


@pytest.mark.lint
def test_equivalent_mutants_have_a_reason_and_are_still_there():
    for one in yaml.safe_load(EQUIVALENT.read_text("utf-8")):
        text = (ROOT / one["file"]).read_text("utf-8")
        first, lines = one["line"].splitlines()[0].strip(), text.splitlines()
        found = [mutant_at(place) for place in places_of(text) if lines[place.line - 1].strip() == first]
        assert any(m and (m.before.strip(), m.after.strip()) == (one["line"], one["mutant"]) for m in found), one
        assert len(one["because"].split()) > 3
