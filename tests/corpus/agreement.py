"""A law of every comparison: nothing is explained by what agrees.

If all that an operator reads was compared and agrees, an output beyond its limit is never a match. EXCEPTIONS are the
rules whose explanation is a fact about the operator itself; with inputs that are equal bit for bit, only those of
OWN_ROUNDING explain. Growth explains three times the error of the inputs and the limit, 8 times where not all that the
operator reads was recorded or a root exists; a flip inside a module is possible only where 16 e of its elements are
1/1024 or more. A tensor that one row calls diverged is no match in the row of its reader.
"""

from __future__ import annotations

from typing import Iterator

from npucmp.flow.contents import content_of
from npucmp.flow.operators import OperatorFindings, nodes_of
from npucmp.localise.rule_context import CARRIED, FLIP_SHARE
from npucmp.localise.rules.explanations import GROWTH, POSSIBLE
from npucmp.model import Comparison, Finding, Verdict
from npucmp.model.roles import is_parameter

OWN_ROUNDING = {
    "cancellation": "the limit is relative to a sum much smaller than its terms; both sides round the terms",
    "constant_rows": "rows that are constant in the input hold nothing but the rounding of both sides",
}
EXCEPTIONS = {
    **OWN_ROUNDING,
    "condition": "the operator multiplies a relative error below the limit by its condition number, at this input",
    "choice": "a mask or an index of values that differ within their limit flips at ties",
    "non_smooth": "the gradient of a choice flips where its forward differs within its limit",
}


def violations(comparison: Comparison) -> Iterator[str]:
    """Yield each row that breaks the law."""
    for node in nodes_of(comparison.findings):
        read = [*node.inputs, *node.extra_inputs]
        if read and node.inputs and all(map(_agrees, read)) and not node.remote_inputs_missing:
            yield from _of_operator(node, max(one.error or 0.0 for one in read), bool(comparison.roots))
    yield from _of_readers(comparison)


def _agrees(finding: Finding) -> bool:
    return finding.verdict is Verdict.MATCH and finding.error is not None and not finding.explained_by


def _of_operator(node: OperatorFindings, error: float, has_root: bool) -> Iterator[str]:
    for output in node.outputs:
        if output.verdict is not Verdict.MATCH or not output.explained_by or (output.error or 0.0) <= output.limit:
            continue
        rule = output.explained_by
        explained = rule in (EXCEPTIONS if error else OWN_ROUNDING)
        if rule == "growth":
            most = max(error, output.limit) if has_root and error else error  # rule behind_root
            bound = min(GROWTH * most, CARRIED * most + output.limit)
            explained = (output.error or 0.0) <= (GROWTH * most if has_root or not _is_complete(node) else bound)
        elif rule == "non_smooth" and node.operator.path:
            explained = FLIP_SHARE * error * max(map(_elements, (*node.inputs, *node.extra_inputs, output))) >= POSSIBLE
        if not explained:
            name = f"{node.operator.name} {output.pair.slot}"
            yield f"{name}: rel_l2 {output.error:.2e} above {output.limit:.2e} by {rule}, inputs {error:.2e}"


def _is_complete(node: OperatorFindings) -> bool:
    """Whether the parameters of an operator, and what its forward saved for it, were recorded."""
    has_parameters = not node.op.parameters or any(is_parameter(read.pair) for read in node.inputs)
    return has_parameters and (not node.reads_saved or bool(node.extra_inputs))


def _elements(finding: Finding) -> int:
    return finding.measurement.moments.elements if finding.measurement.moments is not None else 0


def _of_readers(comparison: Comparison) -> Iterator[str]:
    written: dict[int, Finding] = {}
    for finding in comparison.findings:
        content = content_of(finding)
        if not content or finding.error is None or finding.metric != "rel_l2":
            continue
        if finding.pair.slot.startswith("output"):
            written[content] = finding
        source = written.get(content)
        is_open = finding.verdict is Verdict.MATCH and not finding.explained_by
        if is_open and source is not None and source.verdict is Verdict.DIVERGED and source.error == finding.error:
            yield f"{finding.pair.operator.name} {finding.pair.slot}: a match, diverged where it was written"
