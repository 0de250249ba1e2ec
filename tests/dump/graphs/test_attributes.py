"""The attributes that a replay needs, in every spelling of a graph."""

import struct

from npucmp.dump.graphs import attributes, load_graphs
from npucmp.dump.graphs.graphdef import from_wire
from npucmp.dump.readers.protobuf import Cursor
from npucmp.dump.readers.safe_open import open_regular

GE = """graph { name: "g" op { name: "data" type: "Data" output_desc { } } op { name: "c" type: "Conv2D" id: 1
  input: "data:0" input: "" input: "data:0" input: "data:-1"
  attr { key: "strides" value { list { i: 1 i: 1 i: 2 i: 2 val_type: VT_LIST_INT } } }
  attr { key: "data_format" value { s: "NHWC" } }
  attr { key: "negative_slope" value { f: 0 } }
  attr { key: "ceil_mode" value { b: true } }
  attr { key: "coeff" value { list { val_type: VT_LIST_FLOAT } } }
  attr { key: "_input_name_idx_key" value { list { s: "bias" s: "offset" s: "x" } } }
  attr { key: "_input_name_idx_value" value { list { i: 2 i: 1 i: 0 } } }
  attr { key: "value" value { t { data: "abc" } } }
  attr { key: "_weights_nobody_reads" value { s: "abc" } }
} }"""
TF = r"""node { name: "axes" op: "Const" attr { key: "value" value {
    tensor { dtype: DT_INT32 tensor_shape { dim { size: 2 } }
    tensor_content: "\001\000\000\000\377\377\377\377" } } } }
node { name: "large" op: "Const" attr { key: "value" value {
    tensor { dtype: DT_FLOAT tensor_shape { dim { size: 65 } }
    float_val: 1 } } } }
node { name: "scale" op: "Const" attr { key: "value" value {
    tensor { dtype: DT_FLOAT tensor_shape { } float_val: 0.5 } } } }
node { name: "m" op: "Mean" input: "axes" attr { key: "keep_dims" value { b: false } } attr { key: 5 value: 6 }
    attr { key: "epsilon" value { f: 0.001 } } attr { key: "T" value { type: DT_FLOAT } } attr: 3 }"""


def test_text_of_ge(tmp_path):
    (tmp_path / "g.txt").write_text(GE)
    (graph,) = load_graphs(tmp_path / "g.txt")
    assert graph.nodes[1].attributes == {
        "strides": (1, 1, 2, 2), "data_format": "NHWC", "negative_slope": 0.0, "ceil_mode": True, "coeff": (),
        "inputs": ("x", "bias"),
    }  # fmt: skip


def test_text_of_tensorflow(tmp_path):
    (tmp_path / "g.pbtxt").write_text(TF)
    (graph,) = load_graphs(tmp_path / "g.pbtxt")
    told = {node.name: dict(node.attributes) for node in graph.nodes}
    assert told["axes"] == {"value": (1, -1)} and told["scale"] == {"value": 0.5} and told["large"] == {}
    assert told["m"] == {"keep_dims": False, "epsilon": 0.001}


def field(number, data):
    if isinstance(data, int):
        return bytes([number << 3, data])
    return bytes([number << 3 | 2, len(data)]) + data


def test_wire_of_tensorflow(tmp_path):
    def attr(key, value):
        return field(5, field(1, key) + field(2, value))

    shape = field(2, field(2, field(1, 2)))
    tensor = field(8, field(1, 3) + shape + field(4, struct.pack("<ii", 1, -1)))
    eps = bytes([4 << 3 | 5]) + struct.pack("<f", 0.5)
    node = field(1, b"n") + field(2, b"Conv2D")
    node += attr(b"strides", field(1, field(3, bytes([1, 2, 2, 1])))) + attr(b"padding", field(2, b"SAME"))
    node += attr(b"epsilon", eps) + attr(b"is_training", field(5, 1)) + attr(b"value", tensor) + field(5, b"attr")
    (tmp_path / "g").write_bytes(field(1, node)[:1] + bytes([len(node) & 127 | 128, len(node) >> 7]) + node)
    with open_regular(str(tmp_path / "g")) as file:
        graph = from_wire(Cursor(file), 0, file.size, "g")
    assert graph.nodes[0].attributes == {
        "strides": (1, 2, 2, 1), "padding": "SAME", "epsilon": 0.5, "is_training": True, "value": (1, -1),
    }  # fmt: skip


def test_values_that_are_none_are_left_out():
    odd = [{"i": ["x"]}, {"s": ["a" * 65]}, {"list": [{"i": [1] * 65}]}, {"list": [{"i": [1, "x"]}]}, {"tensor": [3]},
           {"tensor": [{"dtype": ["DT_INT32"], "tensor_content": ["ab"]}]}, {"func": [{}]},
           {"tensor": [{"tensor_shape": [{"dim": [{"size": [1 << 40]}]}], "float_val": [1]}]}]  # fmt: skip
    assert [attributes.of_text(value) for value in odd] == [None] * len(odd)
