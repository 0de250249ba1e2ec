"""The tokens that a root names: the first that differs, the pattern of all, the columns, and single odd
tokens."""

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers import header
from npucmp.localise.token_origin import TokenErrors, TokenPlaces, with_tokens
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


def facts(root, kind):
    own = [one.facts for one in root.evidence if one.kind == kind]
    return [{name: fact.value for name, fact in some.items()} for some in own]


def words(root, kind):
    return [one.sentence() for one in root.evidence if one.kind == kind]


@pytest.mark.parametrize(
    "rows, said",
    [
        (range(6), "all tokens differ"),
        ([1], "one token differs: request 0, position 1"),
        ([5], "one token differs: request 2, position 0"),  # all of a request, too
        ([0, 1, 2], "all tokens of request 0 differ, and of no other"),
        ([3, 4], "all tokens of request 1 differ, and of no other"),
        ([1, 2], "request 0 differs from position 1 on"),
        ([1, 2, 4], "2 requests differ from a position on; request 0 from position 1"),
        ([3, 4, 5], "2 requests differ from a position on; request 1 from position 0"),
        ([0, 1], "2 of 6 tokens of 1 requests differ, the first: request 0, position 0"),
        ([2, 3], "2 of 6 tokens of 2 requests differ, the first: request 0, position 2"),
        ([0, 2], "2 of 6 tokens of 1 requests differ, the first: request 0, position 0"),
    ],
)
def test_the_pattern_of_the_tokens_that_differ(tmp_path, rows, said):
    dump = Dump(tmp_path).add("output:0", marked(*rows))
    (root,) = dump.ask(dump.root()).roots
    first = min(rows)
    assert words(root, "tokens") == [said]
    assert (root.request, root.position) == (REQUESTS[first], POSITIONS[first])
    assert facts(root, "row") == [{"step": ROWS[first][0], "row": ROWS[first][1]}]
    assert root.relation == RELATION.words


@pytest.mark.parametrize("steps, said", [(1, "in the target: row 5:0"), (2, "target: step 5, row 5:0")])
def test_the_row_of_the_target(tmp_path, steps, said):
    dump = Dump(tmp_path).add("output:0", marked(3))
    (root,) = dump.ask(dump.root(), places=PLACES._replace(steps=steps)).roots
    (found,) = words(root, "row")
    assert found.endswith(said)


@pytest.mark.parametrize(
    "read, errors, bad",
    [
        ((), (0.76, 0.75, 0, 0, 0, 0), [0]),  # three quarters of the limit of the whole
        ((0, 0), (0.76, 0.74, 0, 0, 0, 0), [0]),
        ((0.5,), (1.6, 1.4, 0, 0, 0, 0), [0]),  # three times the error of what is read
        ((0.5, 0.1), (1.6, 1.4, 0, 0, 0, 0), [0]),
        ((8.0,), (4.1, 4.0, 0, 0, 0, 0), [0]),  # at most four limits
        ((), (0.5, 0.7, 0, 0, 0, 0), [1]),  # none beyond the limit: the largest
        ((), (0.7, 0.7, 0, 0, 0, 0), [0, 1]),
        ((), (900, 0.91, 0, 0, 0.89, 0), [0, 1]),  # a thousandth of the largest
    ],
)
def test_the_error_beyond_which_a_token_differs(tmp_path, read, errors, bad):
    dump = Dump(tmp_path)
    for at, one in enumerate(read):
        dump.add(f"input:{at}", (0, 0, 0, 0, one * LIMIT, 0))
    dump.add("output:0", np.array(errors) * LIMIT)
    (root,) = dump.ask(dump.root()).roots
    places = [{"request": REQUESTS[at], "position": POSITIONS[at]} for at in bad]
    (said,) = facts(root, "tokens")
    assert {name: said[name] for name in places[0]} == places[0]
    assert said.get("count", 1) == len(bad)


def test_the_limit_of_an_odd_token_is_its_own(tmp_path):
    dump = Dump(tmp_path).add("output:0", (1.1 * LIMIT, 0.9 * LIMIT, 0, 0, 0, 0))
    (root,) = dump.ask(dump.root(rule="odd_token")).roots
    assert words(root, "tokens") == ["one token differs: request 0, position 0"]


def test_a_token_that_is_infinite_does_not_hide_others(tmp_path):
    dump = Dump(tmp_path).add("output:0", (np.inf, 0, 0, 0.01, 0, 0))
    (root,) = dump.ask(dump.root()).roots
    assert facts(root, "tokens")[0]["count"] == 2


@pytest.mark.parametrize(
    "errors, relation",
    [(CLEAN, RELATION), (marked(1)[:5], RELATION), (marked(1), None)],
)
def test_a_root_without_errors_by_token_is_left_alone(tmp_path, errors, relation):
    dump = Dump(tmp_path).add("output:0", errors, relation=relation)
    root = dump.root(relation="kept")
    (found,) = dump.ask(root).roots
    assert found == root


def test_a_root_reads_the_tensor_that_shows_the_error(tmp_path):
    dump = Dump(tmp_path).add("input:0", marked(5)).add("output:1", marked(4)).add("output:0", marked(3))
    dump.add("output:0", marked(2), order=7)
    (root,) = dump.ask(dump.root()).roots
    assert (root.request, root.position) == (1, 0)


# Columns


@pytest.mark.parametrize(
    "columns, said",
    [
        (np.s_[2:4], "columns 2 to 3 of 8 differ, as those of a head"),
        (np.s_[4:8], "columns 4 to 7 of 8 differ, as those of a head"),  # half of all
        (np.s_[0:1], "columns 0 to 0 of 8 differ, as those of a head"),
        (np.s_[0:5], ""),
        (np.s_[:], ""),
        (np.s_[0:4:2], ""),  # apart
    ],
)
def test_columns_that_stand_side_by_side(tmp_path, columns, said):
    dump = Dump(tmp_path).add("output:0", marked(1, 4), columns)
    (root,) = dump.ask(dump.root()).roots
    assert words(root, "columns") == ([said] if said else [])


def test_columns_with_a_small_share_of_the_error_agree(tmp_path):
    for share, last in ((0.09, 3), (0.11, 4)):
        file = tmp_path / "0 output:0 target.npy"
        dump = Dump(tmp_path).add("output:0", marked(1), np.s_[2:4])
        values = np.load(file)
        values[1, 4] += share * (values[1, 3] - 1)
        np.save(file, values)
        (root,) = dump.ask(dump.root()).roots
        assert facts(root, "columns") == [{"first": 2, "last": last, "every": 8}]


@pytest.mark.parametrize(
    "target, golden, first, last",
    [
        (np.nan, 1.0, 2, 2),
        (1.0, np.inf, 2, 2),
        (-np.inf, -np.inf, 3, 3),  # equal
        (1e200, 1.0, 2, 2),  # its square is beyond all numbers
    ],
)
def test_columns_of_numbers_that_are_not_finite(tmp_path, target, golden, first, last):
    dump = Dump(tmp_path).add("output:0", marked(1), np.s_[2:4])
    for side, value in (("target", target), ("golden", golden)):
        file = tmp_path / f"0 output:0 {side}.npy"
        values = np.load(file)
        values[1, 2] = value
        np.save(file, values)
    (root,) = dump.ask(dump.root()).roots
    assert facts(root, "columns") == [{"first": first, "last": last, "every": 8}] and root.position == 1


def test_numbers_whose_squares_are_beyond_all_numbers_show_no_head(tmp_path):
    dump = Dump(tmp_path).add("output:0", marked(1), np.s_[2:4])
    np.save(tmp_path / "0 output:0 golden.npy", np.full((6, COLUMNS), 1e200))
    (root,) = dump.ask(dump.root()).roots
    assert words(root, "columns") == []


def test_rows_of_zeros_show_no_head(tmp_path):
    """They have no size of which an error is a share."""
    dump = Dump(tmp_path).add("output:0", marked(1))
    golden = tmp_path / "0 output:0 golden.npy"
    np.save(golden, np.zeros((6, COLUMNS)))
    (root,) = dump.ask(dump.root()).roots
    assert words(root, "columns") == [] and root.position == 0


# Tensors that cannot be read again


@pytest.mark.parametrize("lost", ["output:0", "input:0"])
def test_tokens_that_cannot_be_read_are_unknown(tmp_path, lost):
    dump = Dump(tmp_path).add("input:0", CLEAN).add("output:0", marked(1)).without(lost)
    (root,) = dump.ask(dump.root("PROPAGATED")).roots
    (said,) = words(root, "tokens")
    assert said.startswith("the first token that differs is unknown: ") and len(said) > 45
    assert root.request is None and words(root, "row") == []


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


# Single tokens


def odd(folder, errors, read=(), **more):
    dump = Dump(folder)
    for at, one in enumerate(read):
        dump.add(f"input:{at}", (0, one * LIMIT, 0, 0, 0, 0))
    return dump.add("output:0", np.array(errors) * LIMIT, **{**ODD, **more})


def test_a_single_token_that_differs_is_a_root(tmp_path):
    dump = odd(tmp_path, (0, 0.25, 9, 0.25, 0.25, 0.25), [0.125])
    found = dump.ask()
    (root,) = found.roots
    assert (root.place, root.cause, root.rule, root.slot) == (1, Cause.BORN, "odd_token", "output:0")
    assert (root.request, root.position) == (0, 2)
    exact = [one / LIMIT for one in (root.value, root.limit, root.input_error, root.output_error)]
    assert exact == pytest.approx([9, 2, 0.125, 9])
    (said,) = facts(root, "token")
    known = {name: value / LIMIT for name, value in said.items()}
    assert known == pytest.approx({"error": 0.9, "largest": 9, "usual": 0.25, "given": 0.125})
    assert [one.verdict for one in found.findings] == [Verdict.MATCH, Verdict.DIVERGED]


@pytest.mark.parametrize(
    "errors, read, more, found",
    [
        ((0, 0, 2.0, 0, 0, 0), [], {}, False),  # two limits
        ((0, 0, 2.1, 0, 0, 0), [], {}, True),
        ((0, 0, 9, 1.0, 1.0, 1.0), [], {}, True),  # eight times the median
        ((0, 1, 8, 1, 1, 1), [], {}, False),
        ((0, 0, 9, 0, 0, 0), [1.1], {}, True),  # eight times what it reads
        ((0, 0, 9, 0, 0, 0), [1.2], {}, False),
        ((0, 0, 9, 0, 0, 0), [0.1, 1.2], {}, False),
        ((0, 0, 9, 0, 0, 0), [1.2, 0.1], {}, False),
        ((0, 0, 9, 0, 0, 0), [], {"error": LIMIT * 0.42}, True),  # the error of the whole, times √6
        ((0, 0, 9, 0, 0, 0), [], {"error": LIMIT * 0.40}, False),
        ((0, 0, 9, 0, 0, 0), [], {"error": 0.0}, False),
        ((0, 0, 9, 0, 0, 0), [], {"error": None}, False),
        ((0, 0, 9, 0, 0, 0), [], {"limit": 0.0}, False),
        ((0, 0, 9, 0, 0, 0), [], {"verdict": Verdict.DIVERGED}, False),
        ((0, 0, 9, 0, 0, 0), [], {"relation": None}, False),
    ],
)
def test_the_bounds_of_a_single_token(tmp_path, errors, read, more, found):
    assert len(odd(tmp_path, errors, read, **more).ask().roots) == found


def test_the_first_output_with_a_single_token_counts(tmp_path):
    """Inputs do not; outputs of an operator count in their order."""
    dump = Dump(tmp_path)
    for order in (2, 1):
        for slot in ("input:0", "output:0", "output:1"):
            errors = CLEAN if slot == "output:0" and order == 1 else marked(3, size=9 * LIMIT)
            dump.add(slot, errors if slot != "input:0" else CLEAN, order=order, **ODD)
    (root,) = dump.ask().roots
    assert (root.pair.order, root.slot) == (1, "output:1")
    alone = Dump(tmp_path).add("input:0", marked(3, size=9 * LIMIT), **ODD)
    assert alone.ask().roots == ()


@pytest.mark.parametrize(
    "cause, order, found",
    [
        ("BORN", 0, [("", 0)]),
        ("BORN", 1, [("", 1)]),
        ("BORN", 2, [("odd_token", 1), ("", 2)]),
        ("PROPAGATED", 0, [("odd_token", 1), ("", 0)]),
        ("PROPAGATED", 1, [("odd_token", 1)]),
    ],
)
def test_a_single_token_counts_before_all_roots(tmp_path, cause, order, found):
    dump = Dump(tmp_path)
    for at in range(3):
        dump.add("output:0", marked(3, size=9 * LIMIT) if at == 1 else CLEAN, order=at, **ODD)
    roots = dump.ask(dump.root(cause, order)).roots
    assert [(root.rule, root.pair.order) for root in roots] == found
    assert [root.place for root in roots] == [*range(1, len(found) + 1)]
