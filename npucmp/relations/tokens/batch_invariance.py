"""The share of tokens whose bits are equal in both runs, operator by operator: which operators depend on the batch."""

from __future__ import annotations

from typing import Any, Iterator, Optional

from npucmp.model import Comparison, Finding
from npucmp.model.relation import TokenBits
from npucmp.model.roles import is_output
from npucmp.relations.tokens.row_errors import RowErrors
from npucmp.relations.tokens.token_origin import TokenErrors


def token_bits(one: Comparison, requests: Any, errors_of: TokenErrors) -> Iterator[TokenBits]:
    """Yield a row for each output that both runs have by token, in the order of the golden's operators. `requests` has
    the request of each token. A difference originates in an operator at a token if the inputs of the operator have
    equal bits at all tokens of the request up to it."""
    for findings in _by_operator(one):
        inputs = [errors_of.of(each.pair) for each in findings if not is_output(each.pair)]
        read = [each for each in inputs if each is not None]
        for finding in findings:
            pair = finding.pair
            errors = errors_of.of(pair) if is_output(pair) else None
            if errors is None:
                continue
            golden = pair.golden_op.name if pair.golden_op is not None else ""
            tokens, equal = len(errors.equal), int(errors.equal.sum())
            yield TokenBits(one.step, pair.operator.name, golden, pair.operator.op_type, pair.slot, tokens, equal,
                            _originated(read, errors, requests), float(errors.relative.max()))  # fmt: skip


def _by_operator(one: Comparison) -> Iterator[list[Finding]]:
    found: dict[int, list[Finding]] = {}
    for finding in one.findings:
        relation = finding.pair.target.relation if finding.pair.target is not None else None
        if relation is not None and finding.pair.golden is not None:
            found.setdefault(finding.pair.order, []).append(finding)
    yield from (found[order] for order in sorted(found))


def _originated(read: list[RowErrors], errors: RowErrors, requests: Any) -> Optional[int]:
    """The number of tokens at which a difference originates; None without recorded inputs."""
    if not read or any(len(each.equal) != len(errors.equal) for each in read):
        return None
    equal: Any = read[0].equal.copy()
    for each in read[1:]:
        equal &= each.equal
    for at in range(1, len(equal)):
        equal[at] &= equal[at - 1] or requests[at] != requests[at - 1]
    return int((equal & ~errors.equal).sum())
