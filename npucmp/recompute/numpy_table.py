"""Which operators of graphs numpy replays: one literal line per operator, with the names that frameworks give it.

kinds   sum     linear in each of its inputs: budget by the random walk of rounding
        noise   anything else that rounds: noise at every step (noisy_ops.py)
        once    one correctly rounded operation: as noise, and truncation can be told
        exact   copies, choices, comparisons: equal to the last bit
A name counts without case and underscores, and without what GE puts behind it (D, V2). `reads` is how many inputs it
takes as part of a fused operator, whose first reads what the one before made; `views` may have any shape of that size.
A dump's name selects a line; what is called is the function that stands here.

Source: TensorFlow's raw_ops, MindSpore's ops.operations, GE's op_proto.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple, Optional

import numpy as np

from npucmp.recompute import numpy_copies as copies
from npucmp.recompute import numpy_formulas as formulas
from npucmp.recompute import numpy_norms as norms
from npucmp.recompute import numpy_windows as windows
from npucmp.recompute.numpy_formulas import Formula, chosen, each, extreme, pair, reduction


class Line(NamedTuple):
    names: str
    formula: Formula
    kind: str = "noise"
    reads: int = 1
    views: bool = False
    folds: bool = False  # may vanish in the weights of the operator before it


TABLE = (
    Line("Conv2D Conv Conv2DCompress", windows.conv2d, "sum", 2),
    Line("Conv2DBackpropInput", windows.conv2d_input, "sum", 3),
    Line("Conv2DBackpropFilter", windows.conv2d_filter, "sum", 3),
    Line("MatMul Gemm", formulas.matmul, "sum", 2),
    Line("BatchMatMul", formulas.batch_matmul, "sum", 2),
    Line("FullyConnection InnerProduct", formulas.fully_connected, "sum", 2),
    Line("BiasAdd", formulas.bias_add, "once", 2),
    Line("BiasAddGrad", formulas.bias_add_grad, "sum"),
    Line("Add TensorAdd AssignAdd", pair("add"), "once", 2),
    Line("Sub AssignSub", pair("sub"), "once", 2),
    Line("Mul Multiply", pair("mul"), "once", 2),
    Line("Div RealDiv TrueDiv", pair("div"), "once", 2),
    Line("Pow", pair("power"), "noise", 2),
    Line("SquaredDifference", formulas.squared_difference, "noise", 2),
    Line("Maximum", chosen(np.maximum), "exact", 2),
    Line("Minimum", chosen(np.minimum), "exact", 2),
    Line("AddN AccumulateN", formulas.add_n, "noise", 2),
    Line("Eltwise", formulas.eltwise, "noise", 2),
    Line("Exp", each(lambda m, x: m.exp(x))),
    Line("Log", each(lambda m, x: m.log(x))),
    Line("Log1p", each(lambda m, x: m.apply(np.log1p, x))),
    Line("Expm1", each(lambda m, x: m.apply(np.expm1, x))),
    Line("Sqrt", each(lambda m, x: m.sqrt(x)), "once"),
    Line("Rsqrt", each(formulas.rsqrt)),
    Line("Reciprocal Inv", each(lambda m, x: m.div(1.0, x)), "once"),
    Line("Square", each(lambda m, x: m.mul(x, x)), "once"),
    Line("Tanh", each(lambda m, x: m.tanh(x))),
    Line("Erf", each(lambda m, x: m.erf(x))),
    Line("Sin", each(lambda m, x: m.apply(np.sin, x))),
    Line("Cos", each(lambda m, x: m.apply(np.cos, x))),
    Line("Sigmoid", each(formulas.sigmoid)),
    Line("Swish SiLU", each(lambda m, x: m.mul(x, formulas.sigmoid(m, x)))),
    Line("Softplus", each(lambda m, x: m.apply(lambda one: np.logaddexp(0.0, one), x))),
    Line("Elu", each(lambda m, x: np.where(x > 0, x, m.apply(np.expm1, np.minimum(x, 0.0))))),
    Line("Gelu", formulas.gelu),
    Line("LeakyRelu", formulas.leaky_relu, "once"),
    Line("Relu", each(lambda m, x: np.maximum(x, 0)), "exact"),
    Line("Relu6", each(lambda m, x: np.clip(x, 0, 6)), "exact"),
    Line("ReluGrad", formulas.relu_grad, "exact", 2, views=True),
    Line("Neg", each(lambda m, x: -x), "exact"),
    Line("Abs", each(lambda m, x: np.abs(x)), "exact"),
    Line("Floor", each(lambda m, x: np.floor(x)), "exact"),
    Line("Ceil", each(lambda m, x: np.ceil(x)), "exact"),
    Line("Rint", each(lambda m, x: np.rint(x)), "exact"),
    Line("Sign", each(lambda m, x: np.sign(x)), "exact"),
    Line("ClipByValue", copies.clip, "exact", 3),
    Line("Softmax", formulas.softmax),
    Line("LogSoftmax", formulas.log_softmax),
    Line("SoftmaxGrad", formulas.softmax_grad, "noise", 2),
    Line("LayerNorm", norms.layer_norm, "noise", 3),
    Line("LayerNormGrad", norms.layer_norm_grad, "noise", 5),
    Line("BatchNorm FusedBatchNorm", norms.batch_norm, "noise", 5, folds=True),
    Line("BNInfer", norms.bn_infer, "noise", 5, folds=True),
    Line("BNInference", norms.bn_inference, "noise", 6, folds=True),
    Line("SparseSoftmaxCrossEntropyWithLogits", norms.sparse_cross_entropy, "noise", 2),
    Line("SoftmaxCrossEntropyWithLogits", norms.cross_entropy, "noise", 2),
    Line("ApplyMomentum", norms.momentum, "noise", 5),
    Line("MaxPool", windows.max_pool, "exact"),
    Line("MaxPoolGrad", windows.max_pool_grad, "noise", 3),
    Line("AvgPool", windows.avg_pool),
    Line("Pooling", windows.pooling),
    Line("ReduceSum Sum", reduction("sum"), "sum", 2),
    Line("ReduceMean Mean", reduction("mean"), "noise", 2),
    Line("ReduceMax Max", extreme(np.max), "exact", 2),
    Line("ReduceMin Min", extreme(np.min), "exact", 2),
    Line("ArgMax", copies.arg_extreme("max"), "exact", 2),
    Line("ArgMin", copies.arg_extreme("min"), "exact", 2),
    Line("Cast", copies.cast, "exact", views=True),
    Line("TransData", copies.trans_data, "exact"),
    Line("Transpose", copies.transpose, "exact"),
    Line("Reshape Flatten Squeeze Unsqueeze ExpandDims Identity Load TensorMove MemcpyAsync", copies.same, "exact",
         views=True),
    Line("Gather GatherV2", copies.gather, "exact", 2),
    Line("Concat", copies.concat, "exact", 2),
    Line("Pack Stack", copies.pack, "exact", 2),
    Line("Split SplitD", copies.split, "exact"),
    Line("Slice", copies.cut, "exact"),
    Line("Pad", copies.pad, "exact"),
    Line("Tile", copies.tile, "exact"),
    Line("BroadcastTo", copies.broadcast, "exact"),
    Line("Equal", copies.compared(np.equal), "exact", 2),
    Line("NotEqual", copies.compared(np.not_equal), "exact", 2),
    Line("Greater", copies.compared(np.greater), "exact", 2),
    Line("GreaterEqual", copies.compared(np.greater_equal), "exact", 2),
    Line("Less", copies.compared(np.less), "exact", 2),
    Line("LessEqual", copies.compared(np.less_equal), "exact", 2),
    Line("LogicalAnd", copies.compared(np.logical_and), "exact", 2),
    Line("LogicalOr", copies.compared(np.logical_or), "exact", 2),
    Line("Select", copies.where, "exact", 3),
)  # fmt: skip
_SUFFIX = re.compile(r"(d|v[0-9])$")


def line_of(name: str) -> Optional[Line]:
    """The line of an operator type, None if there is none."""
    key = name[:64].replace("_", "").lower()
    lines = _lines()
    while key not in lines:
        shorter = _SUFFIX.sub("", key)
        if shorter == key:
            return None
        key = shorter
    return lines[key]


@cache
def _lines() -> dict[str, Line]:
    return {name.lower(): line for line in TABLE for name in line.names.split()}
