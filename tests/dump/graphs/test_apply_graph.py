"""What a run learns from its graphs: what its tensors stand for and read, their shapes, and the order of operators."""

from __future__ import annotations

import pytest

from npucmp.dump.graphs.apply_graph import annotate, holds, matching_graphs
from npucmp.dump.graphs.graph import Graph, Node, Port
from npucmp.dump.readers.names import fed_tensor
from npucmp.model import Device, Operator, Payload, Run, TensorRef


def port(shape=(2, 3), origin="", index=0, order="", logical=None, layout="ND") -> Port:
    return Port("DT_FLOAT", layout, shape, order, logical, origin, index)


def node(name, inputs=(), originals=None, op_type="", ports_in=None, ports_out=(port(),), order=0) -> Node:
    """A node of GE: of "a:0" what it reads; its ports all alike unless told."""
    read = tuple((one.rpartition(":")[0], int(one.rpartition(":")[2])) for one in inputs)
    ports = tuple(port() for _ in read) if ports_in is None else ports_in
    return Node(name, op_type or name, order, read, (), originals, (), False, "", ports, tuple(ports_out))


def tf(name, *inputs, op_type="") -> Node:
    """A node of a GraphDef: it has no descriptors."""
    return node(name, inputs, op_type=op_type, ports_in=(), ports_out=())


def graph(*nodes, name="model", path="ge.txt") -> Graph:
    return Graph(path, name, tuple(one._replace(order=order) for order, one in enumerate(nodes)))


def operator(name, *slots, shapes=None, file="") -> Operator:
    """An executed operator: "input:0", "output:0"."""
    tensors = tuple(
        TensorRef(slot, "float32", (shapes or {}).get(slot, (2, 3)), file or f"{name} {slot}") for slot in slots
    )
    reads = any(slot.startswith("input") for slot in slots)
    return Operator(name, "?", name, "", 0, tensors, reads_recorded=reads)


def run(*operators, format="cann") -> Run:
    numbered = [one._replace(order=order) for order, one in enumerate(operators)]
    return Run("dump", format, tuple(numbered), ordered=False)


def told(run_, *graphs) -> dict[str, Operator]:
    return {one.name: one for one in annotate(run_, graphs).operators}


def tensor(operator_, slot) -> TensorRef:
    return next(one for one in operator_.tensors if one.slot == slot)


ALL = ("input:0", "output:0")
NETWORK = (
    node("x", op_type="Data"),
    node("cast", ["x:0"], (), "Cast"),
    node("trans", ["cast:0"], (), "TransData"),
    node("conv relu", ["trans:0"], ("conv", "relu"), "Conv2D", ports_out=[port(origin="relu")])._replace(passes=("P",)),
    node("back", ["conv relu:0"], (), "TransData"),
    node("mean", ["back:0"]),
)
DUMP = [operator(one.name, *ALL) for one in NETWORK[1:]]


def test_what_operators_are():
    found = told(run(*DUMP), graph(*NETWORK))
    conv = found["conv relu"]
    assert (conv.originals, conv.passes, conv.op_type, conv.inserted) == (("conv", "relu"), ("P",), "Conv2D", False)
    assert [name for name, one in found.items() if one.inserted] == ["cast", "trans", "back"]
    assert (found["mean"].originals, found["mean"].inserted) == ((), False)


def test_sources_and_origins():
    found = told(run(*DUMP), graph(*NETWORK))
    assert {name: [(one.source, one.origin) for one in op.tensors] for name, op in found.items()} == {
        "cast": [("x:0", "x:0"), ("", "x:0")],
        "trans": [("cast:0", "x:0"), ("", "x:0")],
        "conv relu": [("trans:0", "x:0"), ("", "relu:0")],
        "back": [("conv relu:0", "relu:0"), ("", "relu:0")],
        "mean": [("back:0", "relu:0"), ("", "mean:0")],
    }


def test_an_inserted_operator_that_was_not_dumped_is_passed_through():
    found = told(run(DUMP[2], DUMP[4]), graph(*NETWORK))
    assert tensor(found["mean"], "input:0").source == "conv relu:0"
    assert tensor(found["conv relu"], "input:0").source == "trans:0"  # nothing on that way was dumped
    assert tensor(found["conv relu"], "input:0").origin == "x:0"


def test_a_tensor_inside_a_fused_operator_stands_for_nothing():
    two = node("a", [], ("p", "q"), ports_out=[port(), port(origin="q", index=1)])
    found = told(run(operator("a", "output:0", "output:1")), graph(two))
    assert [one.origin for one in found["a"].tensors] == ["", "q:1"]


def test_a_single_original_is_what_the_outputs_stand_for():
    found = told(run(operator("a_fp16", "output:0")), graph(node("a_fp16", [], ("a",))))
    assert tensor(found["a_fp16"], "output:0").origin == "a:0"


def test_escaped_names_find_their_nodes_and_names_that_clash_find_none():
    network = graph(node("net/a", [], ("b", "c"), ports_out=[port(origin="c")]), node("p/q"), node("p.q"))
    found = told(run(operator("net_a", "output:0"), operator("p_q", "output:0"), operator("p/q", "output:0")), network)
    assert tensor(found["net_a"], "output:0").origin == "c:0"
    assert tensor(found["p_q"], "output:0").origin == ""
    assert tensor(found["p/q"], "output:0").origin == "p/q:0"


def test_two_cast_that_read_each_other_end():
    loop = graph(node("a", ["b:0"], (), "Cast"), node("b", ["a:0"], (), "Cast"))
    assert tensor(told(run(operator("a", *ALL)), loop)["a"], "output:0").origin == ""


COUNTS = [  # shapes that the graph has, shapes that were dumped, what these are then known to read
    ("as many as the graph has", [(2, 3), (2, 3)], [(2, 3), (2, 3)], ["p:0", "q:0"]),
    ("one left out, by its shape", [(2, 3), (5,)], [(5,)], ["q:0"]),
    ("one left out, and both would fit", [(2, 3), (2, 3)], [(2, 3)], [""]),
    ("one left out, and none fits", [(2, 3), (5,)], [(7,)], [""]),
    ("more than the graph has", [(2, 3), (5,)], [(2, 3), (5,), (7,)], ["p:0", "q:0", ""]),
    ("two that fit the same place", [(2, 3), (5,)], [(2, 3), (2, 3), (5,)], ["", "", "q:0"]),
]


@pytest.mark.parametrize("ports, dumped, sources", [row[1:] for row in COUNTS], ids=[row[0] for row in COUNTS])
def test_counts_that_differ_from_the_graph(ports, dumped, sources):
    network = graph(node("p"), node("q"), node("add", ["p:0", "q:0"], ports_in=tuple(map(port, ports))))
    shapes = {f"input:{i}": shape for i, shape in enumerate(dumped)}
    found = told(run(operator("add", *shapes, "output:0", shapes=shapes)), network)["add"]
    assert [one.source for one in found.tensors if not one.is_output] == sources


def test_the_stored_shape_decides_which_input_was_left_out():
    stored = Payload("f", "float32", (2, 3), 0, device=Device("FRACTAL_NZ", (1, 1, 16, 16)))
    add = operator("add", "input:0", "output:0")
    add = add._replace(tensors=(add.tensors[0]._replace(payload=stored), add.tensors[1]))
    network = graph(node("p"), node("q"), node("add", ["p:0", "q:0"], ports_in=(port((2, 3)), port((1, 1, 16, 16)))))
    assert tensor(told(run(add), network)["add"], "input:0").source == "q:0"


def test_logical_shape_and_order_of_axes():
    def held(shape):
        payload = Payload("f", "float32", shape, 0, device=Device("NC1HWC0", (2, 2, 8, 12, 16)))
        return run(Operator("a", "", "a", "", 0, (TensorRef("output:0", "float32", shape, payload=payload),)))

    def shown(logical, order):
        network = graph(node("a", ports_out=[port((2, 2, 8, 12, 16), logical=logical, order=order, layout="NC1HWC0")]))
        one = tensor(told(held((2, 2, 8, 12, 16)), network)["a"], "output:0")
        return one.shape, one.payload.shape, one.payload.device.origin

    assert shown((2, 8, 12, 20), "NHWC") == ((2, 8, 12, 20), (2, 8, 12, 20), "NHWC")
    stored = (2, 2, 8, 12, 16)
    assert shown((9, 9, 9, 9), "NHWC") == (stored, stored, "")  # not what these bytes can hold
    assert shown(None, "NHWC") == (stored, stored, "")
    assert shown((2, 8, 12, 20), "NC1HWC0") == (stored, stored, "")  # no order of logical axes


def test_outputs_alone_borrow_their_inputs_execution_by_execution():
    network = graph(*NETWORK)
    once = [operator(one.name, "output:0", file=f"{one.name} 1") for one in NETWORK[1:]]
    again = [operator(one.name, "output:0", file=f"{one.name} 2") for one in NETWORK[1:]]
    found = annotate(run(*once, *again), [network]).operators
    assert [(op.name, one.file, one.source, one.origin) for op in found for one in op.tensors if not one.is_output] == [
        (name, f"{source} {turn}", f"{source}:0", origin)
        for turn in (1, 2)
        for name, source, origin in (
            ("trans", "cast", "x:0"),
            ("conv relu", "trans", "x:0"),
            ("back", "conv relu", "relu:0"),
            ("mean", "back", "relu:0"),
        )
    ]
    assert [op.name for op in found if not op.reads_recorded] == ["cast", "cast"]


def test_graphdef_inputs_are_the_outputs_that_they_are():
    constant, weight, copy = tf("c", op_type="Const"), tf("w", op_type="Variable"), tf("r", "a:1", op_type="Identity")
    network = graph(constant, weight, tf("a", "c:0"), copy, tf("b", "r:0", "w:0"), path="graph.pbtxt")
    found = told(run(operator("a", "output:0", "output:1"), operator("b", "output:0"), format="tfdbg"), network)
    assert [(one.slot, one.source, one.origin, one.file) for one in found["b"].tensors] == [
        ("input:0", "a:1", "", "a output:1"),
        ("output:0", "", "", "b output:0"),
    ]
    assert found["a"].reads_recorded and not found["b"].reads_recorded  # a constant is no secret, a variable is
    assert found["b"].op_type == "b"


def test_what_a_session_is_fed_stands_for_its_placeholder():
    assert (fed_tensor("_arg_net/x_1_0"), fed_tensor("net/x")) == ("net/x:1", "")
    network = graph(tf("x", op_type="Placeholder"), tf("a", "x:0"))
    found = told(run(operator("_arg_x_0_0", "output:0"), operator("a", "output:0"), format="tfdbg"), network)
    assert tensor(found["a"], "input:0").file == "_arg_x_0_0 output:0"


def names(run_, *graphs) -> list[str]:
    return [one.name for one in annotate(run_, graphs).operators]


def test_ge_operators_stand_in_the_order_of_their_ids():
    mixed = [DUMP[i] for i in (4, 2, 0, 3, 1)]
    assert names(run(*mixed), graph(*NETWORK)) == ["cast", "trans", "conv relu", "back", "mean"]
    assert annotate(run(*mixed), [graph(*NETWORK)]).ordered


def test_executions_follow_each_other_and_strangers_stay_behind_their_predecessors():
    some = [DUMP[0], DUMP[1], operator("stranger", "output:0"), DUMP[0], DUMP[1]]
    assert names(run(*some), graph(*NETWORK)) == ["cast", "trans", "stranger", "cast", "trans"]


def test_tensorflow_operators_follow_their_producers():
    network = graph(tf("a"), tf("b", "a:0"), tf("c", "b:0"), tf("d"))
    late = [operator(name, "output:0") for name in "cdba"]
    assert names(run(*late, format="tfdbg"), network) == ["a", "b", "c", "d"]


def test_a_while_loop_in_a_graphdef_ends():
    network = graph(tf("merge", "next:0"), tf("body", "merge:0"), tf("next", "body:0", op_type="NextIteration"))
    dumped = [operator(one, "output:0") for one in ("merge", "body", "next")]
    assert sorted(names(run(*dumped, format="tfdbg"), network)) == ["body", "merge", "next"]


def test_of_several_stages_the_one_that_holds_most_counts_and_the_last_of_equals():
    early = graph(node("conv"), node("relu"), node("mean"), path="early")
    build, again = graph(*NETWORK, path="build"), graph(*NETWORK, path="again")
    assert [one.path for one in matching_graphs([early, build, again], run(*DUMP))] == ["again"]
    assert [one.path for one in matching_graphs([build, early], run(*DUMP))] == ["build"]


def test_a_graph_of_another_network_is_left_alone():
    other = graph(node("mean"), *(node(f"n{i}") for i in range(20)), name="other")
    much = run(*DUMP, operator("a", "output:0"))
    assert annotate(much, [other]) is much
    assert [one.path for one in matching_graphs([other, graph(*NETWORK)], much)] == ["ge.txt"]


def test_two_graphs_of_one_run_and_none_that_adds_nothing():
    first, second = graph(*NETWORK[:4], name="1", path="1"), graph(*NETWORK[4:], name="2", path="2")
    copy = graph(*NETWORK[1:3], name="3", path="3")
    assert annotate(run(*DUMP), [first, copy, second]).notes == ("graph 1", "graph 2")


def test_a_reference_that_ran_unfused_is_no_run_of_the_fused_graph():
    """Its conv bears the name of the fused operator; taking that for conv + relu would compare the wrong tensors."""
    fused = graph(node("conv", [], ("conv", "relu"), ports_out=[port(origin="relu")]))
    unfused = run(operator("conv", "output:0"), operator("relu", "output:0"))
    assert annotate(unfused, [fused]) is unfused
    own = graph(node("conv"), node("relu", ["conv:0"]), name="own", path="own.txt")
    assert annotate(unfused, [fused, own]).notes == ("graph own.txt",)
    assert tensor(told(unfused, fused, own)["conv"], "output:0").origin == "conv:0"


def test_a_split_operator_still_fits_its_graph():
    parts = graph(node("conv", [], ("conv",)), node("conv_1", [], ("conv",)))
    assert holds(parts, run(operator("conv", "output:0"))) == 1.0
    assert len(matching_graphs([parts], run(operator("conv", "output:0"), operator("conv_1", "output:0")))) == 1


def test_a_graph_tells_who_wrote_it():
    """GE's graphs serve device runs, GraphDefs the others; of a run's format, its GraphSource says which it is."""
    assert [one.of_device for one in (graph(*NETWORK), graph(tf("a"), tf("b", "a:0")))] == [True, False]


def test_models_of_one_step_keep_their_own_names():
    """Both have a trans_Cast_1; the folder of each dump bears the name of its graph."""
    both = [
        graph(
            node("x"), node("trans_Cast_1", ["x:0"], (), "Cast"), node("a", ["trans_Cast_1:0"]), name="m.1", path="1"
        ),
        graph(
            node("y"), node("trans_Cast_1", ["y:0"], (), "Cast"), node("b", ["trans_Cast_1:0"]), name="m.2", path="2"
        ),
    ]
    dumped = [
        operator(name, *ALL, file=f"20261121093000/0/{model}/1/0/{name}")
        for model, name in (("m_1", "a"), ("m_1", "trans_Cast_1"), ("m_2", "trans_Cast_1"), ("m_2", "b"))
    ]
    found = annotate(run(*dumped), both)
    assert [(one.order, one.name, tensor(one, "input:0").origin) for one in found.operators] == [
        (0, "trans_Cast_1", "x:0"),
        (1, "a", "x:0"),
        (2, "trans_Cast_1", "y:0"),
        (3, "b", "y:0"),
    ]
    assert found.notes == ("graph 1", "graph 2")


# As GE wrote them into graphs of real models: an inserted operator has a list of originals, and it is empty; one that
# GE left alone has none.


def origins(*nodes) -> dict[str, str]:
    """Operator → what its first output stands for; all of a run whose operators have one input and one output."""
    found = told(run(*(operator(one.name, *ALL) for one in nodes)), graph(*nodes))
    return {name: tensor(one, "output:0").origin for name, one in found.items()}


def test_what_was_inserted_in_front_of_an_operator_is_what_it_hands_on():
    """The TransData before and behind Conv_232 both bear its name; only the second holds its output."""
    conv = port(origin="Conv_232")
    assert origins(
        node("Pad_229", ["x:0"]),
        node("trans_TransData_40", ["Pad_229:0"], (), "TransData", ports_out=[conv]),
        node("Conv2D_86", ["trans_TransData_40:0"], ("Conv_232",), "Conv2D", ports_out=[conv]),
        node("trans_TransData_44", ["Conv2D_86:0"], (), "TransData", ports_out=[conv]),
    ) == {
        "Pad_229": "Pad_229:0",
        "trans_TransData_40": "Pad_229:0",
        "Conv2D_86": "Conv_232:0",
        "trans_TransData_44": "Conv_232:0",
    }


def test_behind_a_fused_operator_whose_output_bears_no_name_an_inserted_ones_own_name_counts():
    found = origins(
        node("conv relu", ["x:0"], ("conv", "relu"), "Conv2D"),
        node("trans", ["conv relu:0"], (), "TransData", ports_out=[port(origin="relu")]),
    )
    assert found["trans"] == "relu:0"


def test_a_cast_of_the_network_itself_is_not_inserted():
    nodes = [
        node("NMS_1203", ["x:0"]),
        node("Cast_1206", ["NMS_1203:0"], None, "Cast"),
        node("trans_Cast_6", ["Cast_1206:0"], (), "Cast"),
        node("trans_Cast_7", ["Cast_1206:0"], None, "Cast"),
    ]
    assert origins(*nodes) == {
        "NMS_1203": "NMS_1203:0",
        "Cast_1206": "Cast_1206:0",
        "trans_Cast_6": "Cast_1206:0",
        "trans_Cast_7": "Cast_1206:0",
    }
    found = told(run(*(operator(one.name, *ALL) for one in nodes)), graph(*nodes))
    assert [name for name, one in found.items() if one.inserted] == ["trans_Cast_6", "trans_Cast_7"]


def test_of_an_original_made_of_several_only_what_leaves_is_its_output():
    one = ("RandomNormalLike_327",)
    assert origins(
        node("normal_170", ["x:0"], one, "RandomStandardNormal"),
        node("mul_171", ["normal_170:0"], one, "Mul"),
        node("add_172", ["mul_171:0"], one, "Add"),
        node("next", ["add_172:0"], None, "Relu"),
    ) == {"normal_170": "", "mul_171": "", "add_172": "RandomNormalLike_327:0", "next": "next:0"}


def test_weights_that_lie_in_the_graph_are_told_from_what_is_fed():
    conv = node("conv", ["x:0", "trans:0", "fed:0"])
    nodes = [node("x"), node("weight_folded", op_type="Const"), node("fed", op_type="PlaceHolder"),
             node("trans", ["weight_folded:0"], (), "TransData"), conv]  # fmt: skip
    dump = run(operator("x", "output:0"), operator("conv", "input:0", "input:1", "input:2", "output:0"))
    found = told(dump, graph(*nodes))["conv"]
    assert [one.stored for one in found.tensors] == [False, True, False, False]
