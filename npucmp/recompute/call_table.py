"""Calls of PyTorch and of MindSpore's mint that numpy computes: a literal line per formula, with its calls.

table.py has the kind of a call (sum, noise, exact). If `is_closed`, a record can only hold gradients of the nodes of
the backward formula: a gradient with a fitting shape that is near none of them is wrong. A name also covers its
in-place form with an underscore. npucmp calls the function in this table, never a function that a dump names.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Callable, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.model import Call
from npucmp.recompute import call_copies as copies
from npucmp.recompute import call_elements as elements
from npucmp.recompute import call_losses as losses
from npucmp.recompute import call_norms as norms
from npucmp.recompute import call_products as products
from npucmp.recompute import call_reductions as reductions
from npucmp.recompute.call_copies import copy_formula, selection_back
from npucmp.recompute.call_elements import both, elementwise, extreme_of_two, reflected_method, test


class CallFormula(NamedTuple):
    """names     names of the calls
    pair      the forward formula, and the backward formula or None
    is_closed whether a record can only hold gradients of the nodes
    """

    names: str
    pair: tuple[Callable[..., Any], Optional[Callable[..., Any]]]
    is_closed: bool = True

    @property
    def forward(self) -> Callable[..., Any]:
        return self.pair[0]

    @property
    def backward(self) -> Optional[Callable[..., Any]]:
        return self.pair[1]


_ADD, _SUB = both(elements.add, elements.add_back), both(elements.sub, elements.sub_back)
_MUL, _DIV = both(elements.mul, elements.mul_back), both(elements.div, elements.div_back)
_POW = both(elements.power, elements.power_back)
_MAXIMUM, _MINIMUM = extreme_of_two(np.maximum, np.greater), extreme_of_two(np.minimum, np.less)

TABLE = (
    # activations and functions of one element
    CallFormula("relu", elements.relu),
    CallFormula("relu6", elements.relu6),
    CallFormula("hardtanh", elements.hardtanh),
    CallFormula("threshold", elements.threshold),
    CallFormula("clamp clip", elements.clamp),
    CallFormula("silu", elements.silu),
    CallFormula("gelu", elements.gelu),
    CallFormula("sigmoid", elements.sigmoid_),
    CallFormula("tanh", elements.tanh),
    CallFormula("softplus", elements.softplus),
    CallFormula("elu", elements.elu),
    CallFormula("celu", elements.celu),
    CallFormula("selu", elements.selu),
    CallFormula("leaky_relu", elements.leaky_relu),
    CallFormula("mish", elements.mish),
    CallFormula("logsigmoid", elements.logsigmoid),
    CallFormula("hardsigmoid", elements.hardsigmoid),
    CallFormula("hardswish", elements.hardswish),
    CallFormula("exp", elements.exp),
    CallFormula("exp2", elements.exp2),
    CallFormula("expm1", elements.expm1),
    CallFormula("log", elements.log),
    CallFormula("log2", elements.log2),
    CallFormula("log10", elements.log10),
    CallFormula("log1p", elements.log1p),
    CallFormula("sqrt", elements.sqrt),
    CallFormula("rsqrt", elements.rsqrt_),
    CallFormula("reciprocal", elements.reciprocal),
    CallFormula("square", elements.square),
    CallFormula("sin", elements.sin),
    CallFormula("cos", elements.cos),
    CallFormula("erf", elements.erf),
    CallFormula("abs __abs__", elements.absolute),
    CallFormula("neg negative __neg__", elements.negative),
    CallFormula("sign", elements.sign),
    CallFormula("floor", elements.floor),
    CallFormula("ceil", elements.ceil),
    CallFormula("trunc", elements.trunc),
    CallFormula("round", elements.rounded),
    CallFormula("dropout", both(elements.dropout, elements.dropout_back)),
    # two and more operands
    CallFormula("add __add__ __iadd__", _ADD),
    CallFormula("__radd__", reflected_method(_ADD)),
    CallFormula("sub __sub__ __isub__", _SUB),
    CallFormula("__rsub__", reflected_method(_SUB)),
    CallFormula("mul __mul__ __imul__", _MUL),
    CallFormula("__rmul__", reflected_method(_MUL)),
    CallFormula("div true_divide __truediv__ __itruediv__ __div__ __idiv__", _DIV),
    CallFormula("__rtruediv__ __rdiv__", reflected_method(_DIV), is_closed=False),
    CallFormula("pow __pow__ __ipow__", _POW),
    CallFormula("__rpow__", reflected_method(_POW)),
    CallFormula("maximum", _MAXIMUM),
    CallFormula("minimum", _MINIMUM),
    CallFormula("masked_fill", both(elements.masked_fill, elements.masked_fill_back)),
    CallFormula("lerp", both(elements.lerp, elements.lerp_back)),
    CallFormula("addcmul", both(elements.addcmul, elements.addcmul_back)),
    CallFormula("addcdiv", both(elements.addcdiv, elements.addcdiv_back)),
    CallFormula("eq __eq__", test(np.equal)),
    CallFormula("ne __ne__ not_equal", test(np.not_equal)),
    CallFormula("lt __lt__ less", test(np.less)),
    CallFormula("le __le__ less_equal", test(np.less_equal)),
    CallFormula("gt __gt__ greater", test(np.greater)),
    CallFormula("ge __ge__ greater_equal", test(np.greater_equal)),
    CallFormula("logical_and", test(np.logical_and)),
    CallFormula("logical_or", test(np.logical_or)),
    CallFormula("logical_xor", test(np.logical_xor)),
    CallFormula("logical_not", test(np.logical_not)),
    CallFormula("bitwise_and __and__", test(np.bitwise_and)),
    CallFormula("bitwise_or __or__", test(np.bitwise_or)),
    CallFormula("bitwise_xor __xor__", test(np.bitwise_xor)),
    CallFormula("bitwise_not __invert__", test(np.invert)),
    CallFormula("isnan", test(np.isnan)),
    CallFormula("isinf", test(np.isinf)),
    CallFormula("isfinite", test(np.isfinite)),
    # products
    CallFormula("linear", both(products.linear, products.linear_back)),
    CallFormula("matmul bmm mm __matmul__ mv dot", both(products.matmul, products.matmul_back)),
    CallFormula("__rmatmul__", both(products.right_matmul)),
    CallFormula("addmm baddbmm", both(products.addmm, products.addmm_back)),
    CallFormula("outer", both(products.outer, products.outer_back)),
    CallFormula("einsum", both(products.einsum, products.einsum_back), is_closed=False),
    CallFormula("conv1d", products.conv1d),
    CallFormula("conv2d", products.conv2d),
    CallFormula("scaled_dot_product_attention", both(products.attention, products.attention_back)),
    # windows
    CallFormula("max_pool1d", products.max_pool1d),
    CallFormula("max_pool2d", products.max_pool2d),
    CallFormula("avg_pool1d", products.avg_pool1d),
    CallFormula("avg_pool2d", products.avg_pool2d),
    CallFormula("adaptive_avg_pool1d", products.adaptive_avg_pool1d),
    CallFormula("adaptive_avg_pool2d", products.adaptive_avg_pool2d),
    # norms, losses, reductions
    CallFormula("layer_norm", both(norms.layer_norm, norms.layer_norm_back)),
    CallFormula("rms_norm", both(norms.rms_norm, norms.rms_norm_back), is_closed=False),
    CallFormula("batch_norm", both(norms.batch_norm, norms.batch_norm_back)),
    CallFormula("group_norm", both(norms.group_norm, norms.group_norm_back)),
    CallFormula("softmax", both(norms.softmax, norms.softmax_back)),
    CallFormula("log_softmax", both(norms.log_softmax, norms.log_softmax_back)),
    CallFormula("logsumexp", both(reductions.logsumexp, reductions.logsumexp_back)),
    CallFormula("cross_entropy", both(losses.cross_entropy, losses.cross_entropy_back)),
    CallFormula("nll_loss", both(losses.nll_loss, losses.nll_loss_back)),
    CallFormula("mse_loss", losses.mse_loss),
    CallFormula("l1_loss", losses.l1_loss),
    CallFormula("smooth_l1_loss", losses.smooth_l1_loss),
    CallFormula("binary_cross_entropy", both(losses.bce, losses.bce_back)),
    CallFormula("binary_cross_entropy_with_logits", both(losses.bce_with_logits, losses.bce_with_logits_back)),
    CallFormula("sum", both(reductions.total, reductions.total_back)),
    CallFormula("mean", both(reductions.mean, reductions.mean_back)),
    CallFormula("var", both(reductions.variance, reductions.variance_back)),
    CallFormula("std", both(reductions.deviation, reductions.deviation_back)),
    CallFormula("norm", both(reductions.norm, reductions.norm_back)),
    CallFormula("prod", both(reductions.product, reductions.product_back)),
    CallFormula("cumsum", both(reductions.cumsum_formula, reductions.cumulated_back), is_closed=False),
    # choices
    CallFormula("max", copies.extreme("max")),
    CallFormula("min", copies.extreme("min")),
    CallFormula("amax", copies.extreme_over("max")),
    CallFormula("amin", copies.extreme_over("min")),
    CallFormula("argmax", copies.place_of_extreme("max")),
    CallFormula("argmin", copies.place_of_extreme("min")),
    CallFormula("topk", both(copies.topk, selection_back(copies.topk))),
    CallFormula("sort", both(copies.sort, selection_back(copies.sort))),
    CallFormula("argsort", both(copies.argsort)),
    CallFormula("all", copies.all_or_any("all")),
    CallFormula("any", copies.all_or_any("any")),
    # copies
    CallFormula("reshape view", copy_formula(copies.reshape)),
    CallFormula("flatten unflatten squeeze unsqueeze contiguous clone detach view_as reshape_as to type "
                "type_as float half bfloat16 double int long bool", copy_formula(copies.identity)),
    CallFormula("permute", copy_formula(copies.permute)),
    CallFormula("transpose swapaxes", copy_formula(copies.transpose)),
    CallFormula("t", copy_formula(copies.matrix_transpose)),
    CallFormula("movedim", copy_formula(copies.movedim)),
    CallFormula("expand expand_as broadcast_to", copy_formula(copies.expand)),
    CallFormula("repeat tile", copy_formula(copies.repeat), is_closed=False),
    CallFormula("repeat_interleave", copy_formula(copies.repeat_interleave), is_closed=False),
    CallFormula("narrow", copy_formula(copies.narrow)),
    CallFormula("select", copy_formula(copies.select)),
    CallFormula("chunk", copy_formula(copies.chunks)),
    CallFormula("split split_with_sizes", copy_formula(copies.split)),
    CallFormula("unbind", copy_formula(copies.unbind)),
    CallFormula("roll", copy_formula(copies.roll)),
    CallFormula("flip", copy_formula(copies.flip)),
    CallFormula("tril", copy_formula(copies.tril)),
    CallFormula("triu", copy_formula(copies.triu)),
    CallFormula("gather", copy_formula(copies.gather)),
    CallFormula("index_select", copy_formula(copies.index_select)),
    CallFormula("embedding", both(copies.embedding, copies.embedding_back)),
    CallFormula("__getitem__", copy_formula(copies.item), is_closed=False),
    CallFormula("cat concat concatenate", copy_formula(copies.concat)),
    CallFormula("stack", copy_formula(copies.stack)),
    CallFormula("pad", both(copies.padded, copies.padded_back), is_closed=False),
    CallFormula("pixel_shuffle", copy_formula(copies.pixel_shuffle), is_closed=False),
    CallFormula("interpolate", copy_formula(copies.interpolate), is_closed=False),
    CallFormula("one_hot", both(copies.one_hot)),
    CallFormula("index_add", both(copies.index_add, copies.index_add_back)),
    CallFormula("scatter_add", both(copies.scatter_add, copies.scatter_add_back)),
    CallFormula("index_fill", both(copies.index_fill, copies.index_fill_back)),
)  # fmt: skip
PREFIXES = ("Functional", "Torch", "Tensor", "Mint", "MintFunctional", "MindSpore.Tensor")
_WHERE = CallFormula("where", both(elements.where, elements.where_back))
_WHERE_METHOD = CallFormula("where", both(elements.where_method, elements.where_method_back))


@cache
def _formulas_of_npu() -> dict[str, CallFormula]:
    from npucmp.recompute import call_npu as npu

    table = (
        CallFormula("npu_rms_norm", both(npu.rms_norm, npu.rms_norm_back), is_closed=False),
        CallFormula("npu_add_rms_norm", both(npu.add_rms_norm)),
        CallFormula("npu_swiglu", both(npu.swiglu, npu.swiglu_back), is_closed=False),
        CallFormula("npu_rotary_mul", both(npu.rotary, npu.rotary_back), is_closed=False),
        CallFormula("npu_scaled_masked_softmax", both(npu.scaled_masked_softmax, npu.scaled_masked_softmax_back),
                    is_closed=False),
        CallFormula("npu_gelu", elements.gelu, is_closed=False),
        CallFormula("npu_fast_gelu fast_gelu", elementwise(npu.fast_gelu, npu.fast_gelu_slope), is_closed=False),
        CallFormula("npu_fusion_attention", both(npu.fusion_attention, npu.fusion_attention_back), is_closed=False),
    )  # fmt: skip
    return _by_name(table)


def formula_of(call: Call) -> Optional[CallFormula]:
    """Return the formula of a call; None if only torch computes it, or if it is unknown."""
    if call.prefix == "NPU":
        return _formulas_of_npu().get(call.name)
    if call.prefix not in PREFIXES:
        return None
    name = call.name if call.name.startswith("__") else call.name.rstrip("_")
    if name == "where":
        return _WHERE_METHOD if call.prefix.endswith("Tensor") else _WHERE
    return _formulas().get(name)


@cache
def _formulas() -> dict[str, CallFormula]:
    return _by_name(TABLE)


def _by_name(table: Sequence[CallFormula]) -> dict[str, CallFormula]:
    return {name: formula for formula in table for name in formula.names.split()}
