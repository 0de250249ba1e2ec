"""Table of graph operators that numpy replays, one literal line per operator with its names in each framework; and the
formulas of an operator: its own, or for a fused operator those of its originals in order.

kinds   sum     linear in each of its inputs: budget by the random walk of rounding
        noise   anything else that rounds: noise at every step (noisy_ops.py)
        once    one correctly rounded operation: as noise, and truncation can be detected
        exact   copies, choices, comparisons: equal to the last bit
Names are matched without case, underscores and GE's suffixes (D, V2). `reads` is the number of inputs inside a fused
operator; the first of them is the preceding result. Results of `views` may have any shape of their size. A name from a
dump only selects a line; the table gives the function.

Source: TensorFlow's raw_ops, MindSpore's ops.operations, GE's op_proto.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, Optional

import numpy as np

from npucmp.dump.readers.names import type_of_name
from npucmp.dump.readers.values import Array
from npucmp.model import Operator
from npucmp.recompute import numpy_copies as copies
from npucmp.recompute import numpy_formulas as formulas
from npucmp.recompute import numpy_norms as norms
from npucmp.recompute import numpy_windows as windows
from npucmp.recompute.arguments import MissingTensor, NotInTable, RefusedRecord
from npucmp.recompute.noisy_ops import Alternatives, Steps
from npucmp.recompute.numpy_formulas import Formula, elementwise, extreme, pair, reduction, selection
from npucmp.recompute.numpy_inputs import OperatorInputs


class FormulaLine(NamedTuple):
    names: str
    formula: Formula
    kind: str = "noise"
    reads: int = 1
    views: bool = False
    folds: bool = False  # may be folded into the weights of the preceding operator


TABLE = (
    FormulaLine("Conv2D Conv Conv2DCompress", windows.conv2d, "sum", 2),
    FormulaLine("Conv2DBackpropInput", windows.conv2d_input, "sum", 3),
    FormulaLine("Conv2DBackpropFilter", windows.conv2d_filter, "sum", 3),
    FormulaLine("MatMul Gemm", formulas.matmul, "sum", 2),
    FormulaLine("BatchMatMul", formulas.batch_matmul, "sum", 2),
    FormulaLine("FullyConnection InnerProduct", formulas.fully_connected, "sum", 2),
    FormulaLine("BiasAdd", formulas.bias_add, "once", 2),
    FormulaLine("BiasAddGrad", formulas.bias_add_grad, "sum"),
    FormulaLine("Add TensorAdd AssignAdd", pair("add"), "once", 2),
    FormulaLine("Sub AssignSub", pair("sub"), "once", 2),
    FormulaLine("Mul Multiply", pair("mul"), "once", 2),
    FormulaLine("Div RealDiv TrueDiv", pair("quotient"), "once", 2),
    FormulaLine("Pow", pair("power"), "noise", 2),
    FormulaLine("SquaredDifference", formulas.squared_difference, "noise", 2),
    FormulaLine("Maximum", selection(np.maximum), "exact", 2),
    FormulaLine("Minimum", selection(np.minimum), "exact", 2),
    FormulaLine("AddN AccumulateN", formulas.add_n, "noise", 2),
    FormulaLine("Eltwise", formulas.eltwise, "noise", 2),
    FormulaLine("Exp", elementwise(lambda m, x: m.exp(x))),
    FormulaLine("Log", elementwise(lambda m, x: m.log(x))),
    FormulaLine("Log1p", elementwise(lambda m, x: m.apply(np.log1p, x))),
    FormulaLine("Expm1", elementwise(lambda m, x: m.apply(np.expm1, x))),
    FormulaLine("Sqrt", elementwise(lambda m, x: m.sqrt(x)), "once"),
    FormulaLine("Rsqrt", elementwise(formulas.rsqrt)),
    FormulaLine("Reciprocal Inv", elementwise(lambda m, x: m.div(1.0, x)), "once"),
    FormulaLine("Square", elementwise(lambda m, x: m.mul(x, x)), "once"),
    FormulaLine("Tanh", elementwise(lambda m, x: m.tanh(x))),
    FormulaLine("Erf", elementwise(lambda m, x: m.erf(x))),
    FormulaLine("Sin", elementwise(lambda m, x: m.apply(np.sin, x))),
    FormulaLine("Cos", elementwise(lambda m, x: m.apply(np.cos, x))),
    FormulaLine("Sigmoid", elementwise(formulas.sigmoid)),
    FormulaLine("Swish SiLU", elementwise(lambda m, x: m.mul(x, formulas.sigmoid(m, x)))),
    FormulaLine("Softplus", elementwise(lambda m, x: m.apply(lambda one: np.logaddexp(0.0, one), x))),
    FormulaLine("Elu", elementwise(lambda m, x: np.where(x > 0, x, m.apply(np.expm1, np.minimum(x, 0.0))))),
    FormulaLine("Gelu", formulas.gelu),
    FormulaLine("LeakyRelu", formulas.leaky_relu, "once"),
    FormulaLine("Relu", elementwise(lambda m, x: np.maximum(x, 0)), "exact"),
    FormulaLine("Relu6", elementwise(lambda m, x: np.clip(x, 0, 6)), "exact"),
    FormulaLine("ReluGrad", formulas.relu_grad, "exact", 2, views=True),
    FormulaLine("Neg", elementwise(lambda m, x: -x), "exact"),
    FormulaLine("Abs", elementwise(lambda m, x: np.abs(x)), "exact"),
    FormulaLine("Floor", elementwise(lambda m, x: np.floor(x)), "exact"),
    FormulaLine("Ceil", elementwise(lambda m, x: np.ceil(x)), "exact"),
    FormulaLine("Rint", elementwise(lambda m, x: np.rint(x)), "exact"),
    FormulaLine("Sign", elementwise(lambda m, x: np.sign(x)), "exact"),
    FormulaLine("ClipByValue", copies.clip, "exact", 3),
    FormulaLine("Softmax", formulas.softmax),
    FormulaLine("LogSoftmax", formulas.log_softmax),
    FormulaLine("SoftmaxGrad", formulas.softmax_grad, "noise", 2),
    FormulaLine("LayerNorm", norms.layer_norm, "noise", 3),
    FormulaLine("LayerNormGrad", norms.layer_norm_grad, "noise", 5),
    FormulaLine("BatchNorm FusedBatchNorm", norms.batch_norm, "noise", 5, folds=True),
    FormulaLine("BNInfer", norms.bn_infer, "noise", 5, folds=True),
    FormulaLine("BNInference", norms.bn_inference, "noise", 6, folds=True),
    FormulaLine("SparseSoftmaxCrossEntropyWithLogits", norms.sparse_cross_entropy, "noise", 2),
    FormulaLine("SoftmaxCrossEntropyWithLogits", norms.cross_entropy, "noise", 2),
    FormulaLine("ApplyMomentum", norms.momentum, "noise", 5),
    FormulaLine("MaxPool", windows.max_pool, "exact"),
    FormulaLine("MaxPoolGrad", windows.max_pool_grad, "noise", 3),
    FormulaLine("AvgPool", windows.avg_pool),
    FormulaLine("Pooling", windows.pooling),
    FormulaLine("ReduceSum Sum", reduction("sum"), "sum", 2),
    FormulaLine("ReduceMean Mean", reduction("mean"), "noise", 2),
    FormulaLine("ReduceMax Max", extreme(np.max), "exact", 2),
    FormulaLine("ReduceMin Min", extreme(np.min), "exact", 2),
    FormulaLine("ArgMax", copies.arg_extreme("max"), "exact", 2),
    FormulaLine("ArgMin", copies.arg_extreme("min"), "exact", 2),
    FormulaLine("Cast", copies.cast, "exact", views=True),
    FormulaLine("TransData", copies.trans_data, "exact"),
    FormulaLine("Transpose", copies.transpose, "exact"),
    FormulaLine("Reshape Flatten Squeeze Unsqueeze ExpandDims Identity Load TensorMove MemcpyAsync", copies.same,
         "exact", views=True),
    FormulaLine("Gather GatherV2", copies.gather, "exact", 2),
    FormulaLine("Concat", copies.concat, "exact", 2),
    FormulaLine("Pack Stack", copies.pack, "exact", 2),
    FormulaLine("Split SplitD", copies.split, "exact"),
    FormulaLine("Slice", copies.cut, "exact"),
    FormulaLine("Pad", copies.pad, "exact"),
    FormulaLine("Tile", copies.tile, "exact"),
    FormulaLine("BroadcastTo", copies.broadcast, "exact"),
    FormulaLine("Equal", copies.compared(np.equal), "exact", 2),
    FormulaLine("NotEqual", copies.compared(np.not_equal), "exact", 2),
    FormulaLine("Greater", copies.compared(np.greater), "exact", 2),
    FormulaLine("GreaterEqual", copies.compared(np.greater_equal), "exact", 2),
    FormulaLine("Less", copies.compared(np.less), "exact", 2),
    FormulaLine("LessEqual", copies.compared(np.less_equal), "exact", 2),
    FormulaLine("LogicalAnd", copies.compared(np.logical_and), "exact", 2),
    FormulaLine("LogicalOr", copies.compared(np.logical_or), "exact", 2),
    FormulaLine("Select", copies.where, "exact", 3),
)  # fmt: skip
_SUFFIX = re.compile(r"(d|v[0-9])$")


def line_of(name: str) -> Optional[FormulaLine]:
    """The line of an operator type, None if it has none."""
    key = name[:64].replace("_", "").lower()
    lines = _lines()
    while key not in lines:
        shorter = _SUFFIX.sub("", key)
        if shorter == key:
            return None
        key = shorter
    return lines[key]


@cache
def _lines() -> dict[str, FormulaLine]:
    return {name.lower(): line for line in TABLE for name in line.names.split()}


class Plan(NamedTuple):
    """The lines of an operator in order. `doubt` is why other lines may apply."""

    lines: tuple[FormulaLine, ...]
    doubt: str = ""

    @property
    def kind(self) -> str:
        """The kind of the plan: a chain of copies is exact, any other chain has noise."""
        kinds = {line.kind for line in self.lines}
        return kinds.pop() if len(kinds) == 1 and (len(self.lines) == 1 or kinds == {"exact"}) else "noise"

    @property
    def views(self) -> bool:
        return any(line.views for line in self.lines)

    def results(self, m: Steps, g: OperatorInputs) -> list[Any]:
        if self.doubt:
            g.doubt(self.doubt)
        if len(self.lines) == 1:
            return self.lines[0].formula(m, g)
        if len(g.shapes) > 1:
            raise RefusedRecord("a fused operator has several results")
        return _chained(self.lines, m, g)


def plan_of(operator: Operator) -> Plan:
    """Return the plan of an operator. Raises NotInTable if a formula is missing. If the names of originals are not
    types (Caffe's "bn_conv1"), its own formula is tried; folded constants are then in its weights."""
    parts = operator.attributes.get("parts") or tuple(type_of_name(name) for name in operator.originals)
    if len(parts) < 2:
        return Plan((_line(operator.op_type),))
    lines = [line_of(kind) for kind in parts]
    known = [line for line in lines if line is not None]
    if len(known) == len(lines):
        return Plan(tuple(known))
    return Plan((_line(operator.op_type),), f"it was fused from {len(parts)} operators, some of them unknown")


def _line(kind: str) -> FormulaLine:
    line = line_of(kind)
    if line is None:
        raise NotInTable(f"numpy cannot replay the operator {kind[:40]}")
    return line


def _chained(lines: tuple[FormulaLine, ...], m: Steps, g: OperatorInputs) -> list[Any]:
    """Apply each formula to the result before it, and to the next inputs. A constant that was folded into weights
    leaves its bias as an input; without the bias it is unknown."""
    inputs = g.all
    made: Any = None
    for at, line in enumerate(lines):
        needs = line.reads - (at > 0)
        later = sum(one.reads - 1 for one in lines[at + 1 :] if not one.folds)
        if line.folds and at and len(inputs) - later < needs:
            if len(inputs) - later < 1:
                raise MissingTensor("its folded constants are not among its inputs")
            g.doubt("constants were folded into its weights")
            made = m.add(made, _along(g, inputs.pop(0), made))
            continue
        if len(inputs) < needs:
            raise MissingTensor("its fused constants are not among its inputs")
        taken: list[Array] = [*([made] if at else []), *inputs[:needs]]
        del inputs[:needs]
        with m.outside():
            made = _one(line, m, replace(g, inputs=dict(enumerate(taken)), attributes=_own(g, at)))
    if inputs:
        raise RefusedRecord(f"it has {len(inputs)} more inputs than its originals read")
    return [made]


def _own(g: OperatorInputs, at: int) -> dict[str, Any]:
    """Return the attributes of a part, without the places of inputs, which apply to the whole."""
    return {key: value for key, value in g.attributes.items() if key not in ("inputs", "input_names")}


def _along(g: OperatorInputs, bias: Array, made: Array) -> Array:
    order = g.order(made.ndim)
    channel = order.find("C")
    if bias.size != made.shape[channel]:
        raise RefusedRecord(f"a bias of {bias.size} does not fit {list(made.shape)}")
    return bias.reshape([-1 if axis == channel else 1 for axis in range(made.ndim)])


def _one(line: FormulaLine, m: Steps, g: OperatorInputs) -> Any:
    found = line.formula(m, g)[0]
    if isinstance(found, Alternatives):
        g.doubt("versions of the operator differ")
        return found.among[0]
    return found
