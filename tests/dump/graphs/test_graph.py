"""Looking nodes up: nobody guesses between two that bear the same name."""

import pytest

from npucmp.dump.graphs.graph import Graph, Node, merge_graphs
from npucmp.dump.readers.names import file_name_of


@pytest.mark.parametrize("name, key", [("a/b.c d\\e", "a_b_c_d_e"), ("plain_1", "plain_1"), ("", ""), ("é:0", "é:0")])
def test_escaped(name, key):
    assert file_name_of(name) == key


def test_lookup():
    nodes = (Node("a/b", "Relu"), Node("c", "Add"))
    known = merge_graphs([Graph("p", "g", nodes)])
    assert [known.node(name) for name in ("a/b", "a_b", "c", "none")] == [nodes[0], nodes[0], nodes[1], None]


def test_escaped_names_that_clash_find_nothing():
    known = merge_graphs([Graph("p", "g", (Node("a/b", "Relu"), Node("a.b", "Add"), Node("a b", "Mul")))])
    assert known.node("a_b") is None and known.node("a.b") == Node("a.b", "Add")
