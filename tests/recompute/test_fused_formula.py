"""What a fused operator of a graph computes: its originals, one after the other."""

import numpy as np
import pytest

from npucmp.dump.graphs import load_graphs
from npucmp.dump.graphs.graph import fused_operators
from npucmp.model import Operator
from npucmp.recompute.arguments import MissingTensor, NotInTable, RefusedRecord
from npucmp.recompute.noisy_ops import Steps
from npucmp.recompute.numpy_inputs import OperatorInputs
from npucmp.recompute.numpy_table import plan_of

X = np.random.default_rng(1).normal(size=(2, 3))
W = np.random.default_rng(2).normal(size=(3, 4))
B = np.arange(4.0)


def operator(op_type, *originals, **attributes):
    return Operator("a", op_type, "a", "", 0, (), originals=originals, attributes=attributes)


def computed(which, *inputs, shape, **attributes):
    given = OperatorInputs(dict(enumerate(inputs)), attributes, (shape,), {}, "tfdbg")
    return plan_of(which).results(Steps(2.0**-11, 2.0**-24, 1 << 20), given)[0], given


def test_a_chain_reads_inputs_in_the_order_of_its_parts():
    which = operator("MatMulV2", "net/dense/MatMul", "net/dense/BiasAdd_1", "net/Relu")
    got, given = computed(which, X, W, B, shape=(2, 4))
    assert np.allclose(got, np.maximum(X @ W + B, 0)) and given.doubts == [] and plan_of(which).kind == "noise"


def test_parts_are_known_by_their_types_where_the_graph_has_them():
    which = operator("MatMulV2", "fc1000", "prob", parts=("MatMulV2", "Relu"))
    assert np.allclose(computed(which, X, W, shape=(2, 4))[0], np.maximum(X @ W, 0))


def test_constants_that_were_folded_away():
    """With a bias among the inputs the weights hold them, and nobody is guilty; without one nobody knows them."""
    which = operator("MatMulV2", "dense/MatMul", "bn/FusedBatchNormV3", "Relu")
    got, given = computed(which, X, W, B, shape=(2, 4))
    assert np.allclose(got, np.maximum(X @ W + B, 0))
    assert given.doubts == ["constants were folded into its weights"]
    with pytest.raises(MissingTensor, match="its folded constants"):
        computed(which, X, W, shape=(2, 4))
    with pytest.raises(MissingTensor, match="fused constants"):
        computed(operator("MatMul", "MatMul", "add"), X, W, shape=(2, 4))
    with pytest.raises(RefusedRecord, match="1 more inputs"):
        computed(operator("MatMul", "MatMul", "Relu"), X, W, B, shape=(2, 4))


def test_originals_that_say_nothing_leave_its_own_formula_in_doubt():
    got, given = computed(operator("MatMulV2", "scale_conv1", "conv1", "bn_conv1"), X, W, B, shape=(2, 4))
    assert np.allclose(got, X @ W + B)
    assert given.doubts == ["it was fused from 3 operators, some of them unknown"]
    with pytest.raises(NotInTable, match="cannot replay the operator Unheard"):
        plan_of(operator("Unheard", "a", "b"))


def test_copies_of_copies_are_exact():
    assert plan_of(operator("TransData", "Transpose", "Reshape")).kind == "exact"


def test_operators_that_are_about_to_be_fused_bear_their_types(tmp_path):
    text = """graph { op { name: "x" type: "Data" output_desc { } }
    op { name: "c" type: "Conv2D" id: 1 input: "x:0" attr { key: "fusion_scope" value { i: 3 } }
         attr { key: "strides" value { list { i: 1 i: 1 i: 2 i: 2 } } } }
    op { name: "r" type: "LeakyRelu" id: 2 input: "c:0" attr { key: "fusion_scope" value { i: 3 } }
         attr { key: "negative_slope" value { f: 0.5 } } } }"""
    (tmp_path / "g.txt").write_text(text)
    (node,) = fused_operators(load_graphs(tmp_path / "g.txt")[0])
    assert node.attributes == {"strides": (1, 1, 2, 2), "negative_slope": 0.5, "parts": ("Conv2D", "LeakyRelu")}


def test_the_order_of_axes_is_that_of_the_descriptor_in_ge():
    given = OperatorInputs({0: np.zeros((1, 2, 3, 4))}, {"data_format": "NHWC"}, (), {"input:0": "NCHW"}, "cann")
    assert given.order(4) == "NCHW"
