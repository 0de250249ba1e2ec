"""The tokens that a root names: the first that differs, the pattern of all, the columns, and single odd
tokens."""

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers import header
from npucmp.model import (
    Cause,
    Comparison,
    Finding,
    Measurement,
    Operator,
    Pair,
    Root,
    Run,
    TensorRef,
    Verdict,
)
from npucmp.model.relation import Placement, Relation
from npucmp.model.table import Table
from npucmp.relations.tokens.token_origin import TokenErrors, TokenPlaces, with_tokens

LIMIT = 2.0**-10
REQUESTS, POSITIONS = [0, 0, 0, 1, 1, 2], [0, 1, 2, 0, 1, 0]
ROWS = [(step, f"{step}:{row}") for step in (4, 5) for row in range(3)]
PLACES = TokenPlaces(np.array(REQUESTS), np.array(POSITIONS), ROWS, 1)
COLUMNS = 8
RELATION = Relation((0,), (Placement("rows"),))
CLEAN = (0.0,) * 6


class Dump:
    """A comparison of operators by token. Each tensor of the target is the golden's, of which each row is off
    by an error of that row, in some columns."""

    def __init__(self, folder):
        self.folder, self.findings, self.search = folder, [], TokenErrors(ANYWHERE)

    def add(self, slot, errors, columns=np.s_[:], order=0, relation=RELATION, error=0.0, limit=LIMIT, **more):
        golden = np.ones((len(errors), COLUMNS))
        target = golden.copy()
        target[:, columns] += np.array(errors)[:, None] * np.sqrt(COLUMNS / golden[:1, columns].size)
        refs = []
        for side, values in (("target", target), ("golden", golden)):
            file = str(self.folder / f"{order} {slot} {side}.npy")
            np.save(file, values)
            payload = header("npy", file, ANYWHERE)
            refs.append(TensorRef(slot, "float64", values.shape, file, "npy", payload=payload, label=side))
        refs[0] = refs[0]._replace(relation=relation)
        operator = Operator(f"op.{order}", "op", "op", "forward", order, tuple(refs[1:]))
        pair = Pair(order, slot, operator, operator, *refs, "name", 1.0)
        verdict = more.get("verdict", Verdict.MATCH)
        self.findings.append(Finding(Measurement(pair), verdict, "", error, limit, "rel_l2"))
        return self

    def without(self, slot):
        """The file of the target is lost."""
        (self.folder / f"0 {slot} target.npy").unlink()
        return self

    def root(self, cause="BORN", order=0, limit=LIMIT, **more):
        pair = next(one.pair for one in self.findings if one.pair.order == order)
        return Root(1, pair, Cause(cause), "output:0", "rel_l2", 0.1, limit, 0.0, 0.1, (), **more)

    def ask(self, *roots, places=PLACES, findings=tuple):
        run = Run("run", "npy", ())
        return with_tokens(Comparison(run, run, findings(self.findings), roots, {}), places, self.search)


def marked(*rows, size=1.0):
    return tuple(size if at in rows else 0.0 for at in range(6))


def words(root, kind):
    return [one.sentence() for one in root.evidence if one.kind == kind]


@pytest.mark.parametrize(
    "errors, relation",
    [(CLEAN, RELATION), (marked(1)[:5], RELATION), (marked(1), None)],
)
def test_a_root_without_errors_by_token_is_left_alone(tmp_path, errors, relation):
    dump = Dump(tmp_path).add("output:0", errors, relation=relation)
    root = dump.root(relation="kept")
    (found,) = dump.ask(root).roots
    assert found == root


# Columns


def test_rows_of_zeros_show_no_head(tmp_path):
    """They have no size of which an error is a share."""
    dump = Dump(tmp_path).add("output:0", marked(1))
    golden = tmp_path / "0 output:0 golden.npy"
    np.save(golden, np.zeros((6, COLUMNS)))
    (root,) = dump.ask(dump.root()).roots
    assert words(root, "columns") == [] and root.position == 0


# Tensors that cannot be read again


def test_columns_that_cannot_be_read_are_unknown(tmp_path):
    """The tokens were read before the file was lost."""
    dump = Dump(tmp_path).add("output:0", marked(1))
    dump.search.of(dump.findings[0].pair)
    (root,) = dump.without("output:0").ask(dump.root()).roots
    (said,) = words(root, "columns")
    assert said.startswith("the columns that differ are unknown: ") and root.position == 1


ODD = {"error": LIMIT * 0.9}


@pytest.mark.parametrize(
    "lost, more, verdicts",
    [
        ("output:0", ODD, ["match", "unreadable"]),
        ("input:0", ODD, ["match", "unreadable"]),  # it may explain the odd token
        ("output:0", {**ODD, "verdict": Verdict.DIVERGED}, ["match", "diverged"]),
        ("output:0", {"error": 0.0}, ["match", "match"]),  # nothing was read
        (None, ODD, ["match", "diverged"]),
    ],
)
@pytest.mark.parametrize("findings", [tuple, Table])
def test_an_output_whose_tokens_cannot_be_read_is_no_match(tmp_path, lost, more, verdicts, findings):
    dump = Dump(tmp_path).add("input:0", CLEAN).add("output:0", marked(1, size=9 * LIMIT), **more)
    found = (dump.without(lost) if lost else dump).ask(findings=findings)
    assert [one.verdict.value for one in found.findings] == verdicts
    assert isinstance(found.findings, Table) is (findings is Table)
    if "unreadable" in verdicts:
        assert found.findings[1].because and found.roots == ()
