"""A binary GraphDef beside a TensorFlow dump: graph.pb is read as graph.pbtxt is."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from click.testing import CliRunner

from npucmp.cli import npucmp
from npucmp.dump.graphs import graphs_near, load_graphs
from npucmp.errors import DumpError

NODES = (("x", "Placeholder", ()), ("net/a", "Relu", ("x",)), ("net/b", "Neg", ("net/a:0", "^x")))
TIME = "1619494134703053"


def number(value):
    found = b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def field(at, data):
    data = data.encode() if isinstance(data, str) else data
    return number(at << 3 | 2) + number(len(data)) + data


def graph(nodes=NODES, extra=b""):
    """A GraphDef as protobuf writes it."""
    every = (field(1, n) + field(2, op) + b"".join(field(3, one) for one in read) + extra for n, op, read in nodes)
    return b"".join(field(1, node) for node in every) + b"\x22\x03\x08\xe9\x0a"


def text(nodes=NODES):
    every = (f'name: "{n}" op: "{op}" ' + " ".join(f'input: "{one}"' for one in read) for n, op, read in nodes)
    return "".join(f"node {{ {node} }}\n" for node in every)


def dump(folder, factor=1.0):
    folder.mkdir()
    x = np.random.default_rng(5).standard_normal((4, 8)).astype(np.float32)
    a = np.maximum(x, 0) * np.float32(factor)
    for name, values in (("x", x), ("net_a", a), ("net_b", -a)):
        np.save(folder / f"{name}.0.{TIME}.npy", values)
    return folder


def compared(folder):
    got = CliRunner().invoke(npucmp, ["compare", str(folder / "t"), str(folder / "g"), "-o", str(folder / "out")])
    with open(folder / "out" / "roots.csv", newline="", encoding="utf-8") as stream:
        roots = {row["op"]: row["cause"] for row in csv.DictReader(stream)}
    with open(folder / "out" / "tensors.csv", newline="", encoding="utf-8") as stream:
        slots = {(row["op"], row["slot"]) for row in csv.DictReader(stream)}
    return got, roots, slots


def test_a_binary_graph_says_what_operators_read(tmp_path):
    """The same verdict as by the text: the inputs of operators are the outputs that the graph names."""
    found = []
    for name, data in (("graph.pb", graph()), ("graph.pbtxt", text().encode())):
        place = tmp_path / name.replace(".", "_")
        place.mkdir()
        for side, factor in (("t", 1.01), ("g", 1.0)):
            (dump(place / side, factor) / name).write_bytes(data)
        got, roots, slots = compared(place)
        assert got.exit_code == 1, got.output
        found.append((roots, slots))
    assert found[0] == found[1]
    roots, slots = found[0]
    assert [op.replace("/", "_") for op, cause in roots.items() if cause == "BORN"] == ["net_a"]
    assert any(slot == "input:0" for _, slot in slots)


def test_weights_in_a_frozen_graph_are_passed_over(tmp_path):
    tensor = field(8, b"\x08\x01" + field(4, bytes(1 << 20)))
    (tmp_path / "graph.pb").write_bytes(graph(extra=field(5, field(1, "value") + field(2, tensor))))
    (found,) = load_graphs(tmp_path / "graph.pb")
    assert [(node.name, node.op_type, node.inputs) for node in found.nodes] == [
        ("x", "Placeholder", ()), ("net/a", "Relu", (("x", 0),)), ("net/b", "Neg", (("net/a", 0),))
    ]  # fmt: skip
    assert not any(node.attributes for node in found.nodes)


@pytest.mark.parametrize("size", [1, 5, 9, 20, 40, len(graph()) - 9, len(graph()) - 2])
def test_a_cut_graph_is_refused(tmp_path, size):
    (tmp_path / "graph.pb").write_bytes(graph()[:size])
    with pytest.raises(DumpError):
        load_graphs(tmp_path / "graph.pb")


def test_a_length_beyond_the_file_is_refused(tmp_path):
    (tmp_path / "graph.pb").write_bytes(graph() + b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
    with pytest.raises(DumpError, match="ended early"):
        load_graphs(tmp_path / "graph.pb")


def test_a_broken_graph_beside_a_dump_is_a_note(tmp_path):
    for side in ("t", "g"):
        (dump(tmp_path / side) / "graph.pb").write_bytes(graph()[:-9])
    got, _, _ = compared(tmp_path)
    assert got.exit_code == 0 and "Traceback" not in got.output


def test_other_files_of_this_suffix_are_left_alone(tmp_path):
    (tmp_path / f"Add.a.1.2.{TIME}.pb").write_bytes(b"\x2a\x10" + bytes(16))
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01\x12\x04\x0a\x02\x08\x01")
    assert graphs_near(tmp_path) == []
    (tmp_path / "frozen.pb").write_bytes(graph())
    assert graphs_near(tmp_path) == [tmp_path / "frozen.pb"]
