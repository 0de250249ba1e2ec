"""The tokens of a root: the first one that differs, and the pattern: one token, from a position on, a request, all."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.errors import NpucmpError
from npucmp.localise.evidence import reason
from npucmp.localise.root_cause import with_root_verdict
from npucmp.model import Cause, Comparison, Evidence, Finding, Pair, Root, Verdict
from npucmp.model.comparison import Coverage, OpenTensor
from npucmp.model.roles import is_output
from npucmp.model.table import Table
from npucmp.relations.tokens.row_errors import RowErrors, column_errors, row_errors

BEYOND = 4.0  # limits: chosen: a token that differs by less may be one that rounding makes of errors before it
STANDS_OUT = 8.0  # times: chosen: the error of a token that rounding makes is within so many times the usual one
GROWN = 3.0  # times: chosen: an operator enlarges the errors of a token by less
LEAST = 1e-3  # share: chosen: a token with so small a share of the largest error does not differ
PART = 0.1  # share: chosen: columns with so small a share of the largest error do not differ
ODD = 2.0  # limits: chosen: the errors of the tokens of a clean tensor are within two limits of the whole
ALL = "all tokens differ"
HALF = 0.5  # share of columns: chosen: a wider stretch of columns is no head


class TokenPlaces(NamedTuple):
    """The request, the position, and the step and row of the target, of each row; `steps`: the number of steps of the
    target."""

    requests: Any
    positions: Any
    target: Sequence[tuple[int, str]]
    steps: int

    @property
    def order(self) -> Any:
        """The rows in the order of requests and positions, in which ranks and steps need not hold them."""
        return np.lexsort((self.positions, self.requests))

    def in_order(self, order: Any) -> TokenPlaces:
        """The places of the rows in an order."""
        target = [self.target[at] for at in order]
        return self._replace(requests=self.requests[order], positions=self.positions[order], target=target)


def with_tokens(one: Comparison, places: TokenPlaces, search: TokenErrors) -> Comparison:
    """The comparison with the tokens of its roots, and with a root for the first output that differs at single tokens
    although the whole is within its limit."""
    odd = _odd_token(one, search)
    one = _with_unread_tokens(one, search)
    roots = [*one.roots]
    if odd is not None:
        one = replace(one, findings=with_root_verdict(one.findings, odd))
        kept = [each for each in roots if each.pair.order != odd.pair.order]
        roots = [odd, *(replace(each, place=at) for at, each in enumerate(kept, 2))]
    return replace(one, roots=tuple(with_place(root, one, places, search) for root in roots))


class TokenErrors:
    """The errors of the tokens of the pairs of one comparison, each read once; None for a pair without values by
    token, and for one that cannot be read again, whose reason `problems` has."""

    def __init__(self, context: ReadContext) -> None:
        self.context = context
        self.problems: dict[tuple[int, str], str] = {}
        self._found: dict[tuple[int, str], Optional[RowErrors]] = {}

    def of(self, pair: Pair) -> Optional[RowErrors]:
        key = pair.order, pair.slot
        if key not in self._found:
            try:
                self._found[key] = row_errors(pair, self.context) if _is_by_token(pair) else None
            except NpucmpError as error:
                self._found[key], self.problems[key] = None, str(error)
        return self._found[key]

    def columns(self, pair: Pair, bad: Any) -> Optional[Any]:
        """The errors of the columns of tokens; None without values by token. Raises NpucmpError if a side cannot be
        read."""
        return column_errors(pair, bad, self.context)

    def problem(self, pairs: Sequence[Pair]) -> str:
        """The reason why the tokens of a pair are unknown; "" if they could be read."""
        return next((self.problems[one.order, one.slot] for one in pairs if (one.order, one.slot) in self.problems), "")


def _with_unread_tokens(one: Comparison, search: TokenErrors) -> Comparison:
    """The comparison, in which an output that agrees as a whole is unreadable if its tokens, or those that explain
    them, cannot be read: single ones may differ."""
    changes = {
        at: each._replace(verdict=Verdict.UNREADABLE, because=search.problem([each.pair]))
        for at, each in enumerate(one.findings if search.problems else ())
        if each.verdict is Verdict.MATCH and is_output(each.pair) and search.problem([each.pair])
    }
    if not changes:
        return one
    if not changes:
        return one
    refs = [(each, each.pair.golden) for each in changes.values()]
    unread = [OpenTensor(each.pair.operator.name, each.pair.slot, math.prod(golden.shape), "", each.because)
              for each, golden in refs if golden is not None]  # fmt: skip
    more = Coverage(missed=sum(tensor.elements or 0 for tensor in unread), tensors=len(unread), first=tuple(unread[:1]))
    one = replace(one, coverage=Coverage.sum([one.coverage, more]))
    if isinstance(one.findings, Table):
        return replace(one, findings=one.findings.replaced(changes))
    return replace(one, findings=[changes.get(at, each) for at, each in enumerate(one.findings)])


def _is_by_token(pair: Pair) -> bool:
    return pair.target is not None and pair.target.relation is not None and pair.golden is not None


def _odd_token(one: Comparison, search: TokenErrors) -> Optional[Root]:
    """A root for the first output before all roots of which some tokens err far more than the others and than all that
    the operator read."""

    first = min((root.pair.order for root in one.roots if root.cause is not Cause.PROPAGATED), default=math.inf)
    by_order: dict[int, list[Finding]] = {}
    for finding in one.findings:
        if finding.pair.order < first:
            by_order.setdefault(finding.pair.order, []).append(finding)
    for order in sorted(by_order):
        for finding in by_order[order]:
            if not is_output(finding.pair) or finding.verdict is not Verdict.MATCH or not finding.error:
                continue
            errors = search.of(finding.pair)
            if errors is None or not finding.limit or finding.error * len(errors.error) ** 0.5 < finding.limit:
                continue
            found = errors.relative
            largest = float(found.max())
            inputs = [other.pair for other in by_order[order] if not is_output(other.pair)]
            reads = [*map(search.of, inputs)]
            given = max((float(each.relative.max()) for each in reads if each is not None), default=0.0)
            usual = max(float(np.median(found)), finding.limit / STANDS_OUT, given)
            if largest > ODD * finding.limit and largest > STANDS_OUT * usual:
                if problem := search.problem(inputs):  # the errors of its inputs may explain it
                    search.problems[finding.pair.order, finding.pair.slot] = problem
                    continue
                words = (
                    "the whole is within its limit ({error}), single tokens differ by up to {largest}, the others by "
                )
                words += "{usual}; inputs by at most {given}"
                own = reason(
                    "token", words, error=finding.error, largest=largest, usual=float(np.median(found)), given=given
                )
                return Root(1, finding.pair, Cause.BORN, finding.pair.slot, "rel_l2", largest, ODD * finding.limit,
                            given, largest, (own,), "odd_token")  # fmt: skip
    return None


def with_place(root: Root, one: Comparison, places: TokenPlaces, search: TokenErrors) -> Root:
    """The root with the first token that differs, the pattern of all that do, and the row of the target."""

    own = [each.pair for each in one.findings if each.pair.order == root.pair.order and each.pair.slot == root.slot]
    pair = own[0] if own else root.pair
    errors = search.of(pair)
    limit, problem = _limit(root, one, search), search.problem([pair, *_inputs(root, one)])
    if problem:
        words = "the first token that differs is unknown: {problem}"
        return replace(root, evidence=(*root.evidence, reason("tokens", words, problem=problem)))
    if errors is None or len(errors.error) != len(places.requests):
        return root
    found = errors.relative
    bad = found > max(limit, LEAST * float(found[np.isfinite(found)].max(initial=0.0)))
    if root.rule != "odd_token" and (not bad.any() or errors.whole <= root.limit):
        bad = found > STANDS_OUT * float(np.median(found))  # a factor, or single elements are wrong
    if not bad.any():
        return root
    order, columns = places.order, [*_columns(pair, bad, search)]
    places, bad = places.in_order(order), bad[order]
    first = int(bad.argmax())
    evidence = [*_sentences(bad, places), *columns]
    step, row = places.target[first]
    where = "in the target: step {step}, row {row}" if places.steps > 1 else "in the target: row {row}"
    evidence.append(reason("row", where, step=step, row=row))
    return replace(root, request=int(places.requests[first]), position=int(places.positions[first]),
                   relation=pair.target.relation.words if pair.target and pair.target.relation else root.relation,
                   evidence=(*root.evidence, *evidence))  # fmt: skip


def _limit(root: Root, one: Comparison, search: TokenErrors) -> float:
    """The error beyond which a token differs: it is larger than an operator makes of the errors of all that it read, or
    than some limits of the whole."""
    if root.rule == "odd_token":
        return root.limit
    known = [float(each.relative.max()) for each in map(search.of, _inputs(root, one)) if each is not None]
    return min(BEYOND * root.limit, GROWN * max([root.limit / BEYOND, *known]))


def _inputs(root: Root, one: Comparison) -> list[Pair]:
    """The pairs that the operator of a root read."""
    return [each.pair for each in one.findings if each.pair.order == root.pair.order and not is_output(each.pair)]


def _sentences(bad: Any, places: TokenPlaces) -> Iterator[Evidence]:
    """The pattern of the tokens that differ."""

    count, every = int(bad.sum()), len(bad)
    requests = np.unique(places.requests[bad])
    first = int(bad.argmax())
    facts: dict[str, Any] = {"request": int(places.requests[first]), "position": int(places.positions[first])}
    owns = [np.nonzero(places.requests == request)[0] for request in requests]
    whole = all(bad[own].all() for own in owns)
    suffix = all(bad[own[int(bad[own].argmax()) :]].all() for own in owns)
    if count == every:
        yield reason("tokens", ALL)
    elif count == 1:
        yield reason("tokens", "one token differs: request {request}, position {position}", **facts)
    elif len(requests) == 1 and whole:
        yield reason("tokens", "all tokens of request {request} differ, and of no other", **facts)
    elif suffix and len(requests) == 1:
        yield reason("tokens", "request {request} differs from position {position} on", **facts)
    elif suffix:
        words = "{requests} requests differ from a position on; request {request} from position {position}"
        yield reason("tokens", words, requests=len(requests), **facts)
    else:
        words = (
            "{count} of {every} tokens of {requests} requests differ, the first: request {request}, position {position}"
        )
        yield reason("tokens", words, count=count, every=every, requests=len(requests), **facts)


def _columns(pair: Pair, bad: Any, search: TokenErrors) -> Iterator[Evidence]:
    """The columns that differ, if they stand side by side and all others agree: a head."""

    try:
        errors = search.columns(pair, bad)
    except NpucmpError as error:
        yield reason("columns", "the columns that differ are unknown: {problem}", problem=str(error))
        return
    if errors is None:
        return
    with np.errstate(invalid="ignore"):
        wrong = np.nonzero(errors >= PART * errors.max())[0]
    if len(wrong) and wrong[-1] - wrong[0] + 1 == len(wrong) <= HALF * len(errors):
        yield reason("columns", "columns {first} to {last} of {every} differ, as those of a head",
                     first=int(wrong[0]), last=int(wrong[-1]), every=len(errors))  # fmt: skip
