"""The recorded modules around an operator. Dumps list a module behind the operators in it, because its record is
complete when it ends; it read its inputs before they ran."""

from __future__ import annotations

from typing import Iterator, Mapping, Sequence

from npucmp.flow.operators import OperatorFindings
from npucmp.model import Finding
from npucmp.model.roles import containers, is_parameter, names_of


class Modules:
    """The modules of a run by the names of their records and paths."""

    def __init__(self, nodes: Sequence[OperatorFindings], scopes: Mapping[str, str]) -> None:
        self._scopes = scopes
        self._modules = {name: node for node in nodes if node.operator.path for name in names_of(node.operator)}

    def around(self, node: OperatorFindings) -> Iterator[OperatorFindings]:
        """Yield the modules around an operator, the innermost first."""
        known = node.pair.order
        for name in containers(node.operator, self._scopes):
            module = self._modules.get(name)
            if module is not None and module.pair.order != known:
                known = module.pair.order
                yield module

    def reads(self, module: OperatorFindings, finding: Finding) -> bool:
        """Whether a module reads a tensor, perhaps in another shape or type."""
        return figures_of(finding) in map(figures_of, inputs_of_module(module))


def inputs_of_module(module: OperatorFindings) -> list[Finding]:
    return [finding for finding in module.inputs if not is_parameter(finding.pair)]


def figures_of(finding: Finding) -> object:
    """Return the record that identifies a tensor of both runs, in any shape."""
    moments = finding.measurement.moments
    if moments is None:
        return finding.measurement.statistics
    return moments.target.hash, moments.golden.hash, moments.elements
