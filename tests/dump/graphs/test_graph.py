"""Looking nodes up: nobody guesses between two that bear the same name."""

import pytest

from npucmp.dump.graphs.graph import Graph, Node, escaped


@pytest.mark.parametrize("name, key", [("a/b.c d\\e", "a_b_c_d_e"), ("plain_1", "plain_1"), ("", ""), ("é:0", "é:0")])
def test_escaped(name, key):
    assert escaped(name) == key


def test_lookup():
    nodes = (Node("a/b", "Relu"), Node("c", "Add"))
    graph = Graph("p", "g", nodes)
    assert (graph.by_name("a/b"), graph.by_key("a_b"), graph.by_key("c")) == (nodes[0], nodes[0], nodes[1])
    assert graph.by_name("a_b") is graph.by_key("a/b") is graph.by_name("none") is None


def test_names_that_clash_find_nothing():
    graph = Graph("p", "g", (Node("a/b", "Relu"), Node("a.b", "Add"), Node("a b", "Mul"), Node("c", ""), Node("c", "")))
    assert graph.by_key("a_b") is graph.by_name("c") is graph.by_key("c") is None
    assert graph.by_name("a.b") == Node("a.b", "Add")
