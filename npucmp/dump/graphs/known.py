"""All graphs of a run in one, to be asked for a node by the name that a dump has for it."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.graphs.graph import Graph, Node, joined, united
from npucmp.dump.readers.names import escaped, made_of
from npucmp.model import Run


class Known(NamedTuple):
    """All graphs of a run in one: nodes by their own and by their escaped names."""

    by_name: Mapping[str, Node]
    by_key: Mapping[str, Optional[Node]]
    inner: frozenset[tuple[str, int]] = frozenset()  # outputs that only other parts of the same original read
    last: tuple[tuple[str, str], ...] = ()  # of nodes that several of the graph were made into, the last of these

    def node(self, name: str) -> Optional[Node]:
        """The node of a dumped name, escaped or not; None if there is none, or more than one."""
        return self.by_name.get(name) or self.by_key.get(escaped(name))


def together(graphs: Sequence[Graph]) -> Known:
    """Several graphs as one; of two nodes with the same name the first counts."""
    by_name: dict[str, Node] = {}  # of several graphs in one run, two may have nodes of one name
    for graph in graphs:
        for node in (*graph.nodes, *united(graph)):
            by_name.setdefault(node.name, node)
    by_key: dict[str, Optional[Node]] = {}
    for node in by_name.values():
        key = escaped(node.name)
        by_key[key] = None if key in by_key else node
    return Known(by_name, by_key, _inner(by_name))


def with_joined(known: Known, run: Run) -> Known:
    """With what a compiler made later, and named after all that went in ("Add_2Cast_9"): it writes what the last of
    these writes."""
    strange = {operator.name for operator in run.operators if known.node(operator.name) is None}
    lengths = sorted({len(key) for key in known.by_key if key}, reverse=True) if strange else []
    found: dict[str, Node] = {}
    last: dict[str, str] = {}
    for name in strange:
        parts = [known.by_key[part] for part in made_of(escaped(name), known.by_key, lengths)]
        nodes = [node for node in parts if node is not None]
        if len(nodes) == len(parts) > 1:
            found[name] = joined(name, nodes, tuple(dict.fromkeys(map(_stands_for, nodes))), nodes[-1].ports_out)
            last[name] = nodes[-1].name
    by_key = {**known.by_key, **{escaped(name): node for name, node in found.items()}}
    return known._replace(by_name={**known.by_name, **found}, by_key=by_key, last=tuple(last.items()))


def _stands_for(node: Node) -> str:
    """The operator of the unfused network that a node is, as far as its graph says."""
    return next((port.origin_name for port in node.ports_out if port.origin_name), node.name)


def _inner(nodes: Mapping[str, Node]) -> frozenset[tuple[str, int]]:
    """Of an original that several operators compute, the outputs that stay among them (RandomNormalLike, made of a
    draw, a product and a sum): only what leaves is the original's."""
    stays: dict[tuple[str, int], bool] = {}
    for node in nodes.values():
        for read in node.inputs:
            producer = nodes.get(read[0])
            if producer is not None and producer.originals and len(producer.originals) == 1:
                stays[read] = stays.get(read, True) and node.originals == producer.originals
    return frozenset(read for read, value in stays.items() if value)
