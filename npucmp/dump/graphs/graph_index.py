"""All graphs of a run in one, with lookup of a node by the name in a dump."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.graphs.graph import Graph, Node, merge_nodes, united
from npucmp.dump.readers.name_rules import escaped, made_of
from npucmp.model import Run


class GraphIndex(NamedTuple):
    """All graphs of a run in one: nodes by name and by escaped name."""

    by_name: Mapping[str, Node]
    by_key: Mapping[str, Optional[Node]]
    inner: frozenset[tuple[str, int]] = frozenset()  # outputs read only by other parts of the same original operator
    last: tuple[tuple[str, str], ...] = ()  # node merged by the compiler → the last of its parts

    def node(self, name: str) -> Optional[Node]:
        """Return the node of a dumped name, escaped or not; None if none matches, or more than one."""
        return self.by_name.get(name) or self.by_key.get(escaped(name))


def together(graphs: Sequence[Graph]) -> GraphIndex:
    """Merge several graphs; of two nodes with the same name the first counts."""
    by_name: dict[str, Node] = {}  # several graphs of one run may share node names
    for graph in graphs:
        for node in (*graph.nodes, *united(graph)):
            by_name.setdefault(node.name, node)
    by_key: dict[str, Optional[Node]] = {}
    for node in by_name.values():
        key = escaped(node.name)
        by_key[key] = None if key in by_key else node
    return GraphIndex(by_name, by_key, _inner(by_name))


def with_joined(known: GraphIndex, run: Run) -> GraphIndex:
    """Add nodes that the compiler merged later and named after their parts ("Add_2Cast_9").

    The outputs of such a node are those of its last part.
    """
    strange = {operator.name for operator in run.operators if known.node(operator.name) is None}
    lengths = sorted({len(key) for key in known.by_key if key}, reverse=True) if strange else []
    found: dict[str, Node] = {}
    last: dict[str, str] = {}
    for name in strange:
        parts = [known.by_key[part] for part in made_of(escaped(name), known.by_key, lengths)]
        nodes = [node for node in parts if node is not None]
        if len(nodes) == len(parts) > 1:
            found[name] = merge_nodes(name, nodes, tuple(dict.fromkeys(map(_stands_for, nodes))), nodes[-1].ports_out)
            last[name] = nodes[-1].name
    by_key = {**known.by_key, **{escaped(name): node for name, node in found.items()}}
    return known._replace(by_name={**known.by_name, **found}, by_key=by_key, last=tuple(last.items()))


def _stands_for(node: Node) -> str:
    """Return the operator of the unfused network that a node computes, according to its graph."""
    return next((port.origin_name for port in node.ports_out if port.origin_name), node.name)


def _inner(nodes: Mapping[str, Node]) -> frozenset[tuple[str, int]]:
    """Return the inner outputs of originals that several operators compute.

    An example is RandomNormalLike, computed by a draw, a product and a sum: only the output that others read belongs to
    the original operator.
    """
    stays: dict[tuple[str, int], bool] = {}
    for node in nodes.values():
        for read in node.inputs:
            producer = nodes.get(read[0])
            if producer is not None and producer.originals and len(producer.originals) == 1:
                stays[read] = stays.get(read, True) and node.originals == producer.originals
    return frozenset(read for read, value in stays.items() if value)
