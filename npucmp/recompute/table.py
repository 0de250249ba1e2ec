"""Calls that can be replayed, and the treatment of each: one literal line per API and kind.

kinds   sum      sums of products and plain sums: budget by the random walk of rounding (rounding_noise.py)
        noise    any other call that rounds: rounding noise at every primitive (rounding_noise.py)
        exact    copies, choices, comparisons: equal to the last bit
        dropout  the recorded output gives the mask
        random   cannot be replayed
        ranks    needs the tensors of other ranks
        npu      a formula of call_npu.py, with noise
A word with `*` is a method that also has an in-place form, as "add_".
Autocast: rounds wider inputs to the type of the output first (PyTorch's list of operators in lower precision).
The name in a dump selects a line; npucmp calls the function named in that line.

Source: PyTorch 2.x documentation; 62 dumps of msprobe.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple, Optional

from npucmp.model import Call

REDUCTIONS = ("none", "mean", "sum")


class CallRow(NamedTuple):
    """How a call is replayed. `call` is the path of a function below torch, or the name of a formula. `words` are the
    texts that its arguments may be. If `inplace`, it writes its result into its first argument."""

    call: str
    kind: str
    autocast: bool = False
    inplace: bool = False
    words: tuple[str, ...] = ()


_FUNCTIONAL = {
    "sum": "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d bilinear",
    "noise": "softmax log_softmax softmin layer_norm batch_norm group_norm instance_norm rms_norm local_response_norm "
    "normalize gelu silu mish elu selu celu sigmoid tanh softplus softsign logsigmoid hardswish hardsigmoid tanhshrink "
    "leaky_relu prelu glu avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_avg_pool3d lp_pool1d lp_pool2d interpolate grid_sample affine_grid scaled_dot_product_attention "
    "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy "
    "binary_cross_entropy_with_logits cosine_similarity pairwise_distance cosine_embedding_loss poisson_nll_loss "
    "margin_ranking_loss soft_margin_loss triplet_margin_loss hinge_embedding_loss",
    "exact": "relu relu6 hardtanh threshold max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d "
    "embedding one_hot pad pixel_shuffle pixel_unshuffle channel_shuffle unfold hardshrink",
    "dropout": "dropout dropout1d dropout2d dropout3d",
    "random": "rrelu gumbel_softmax alpha_dropout feature_alpha_dropout fractional_max_pool2d",
}
_BOTH = {  # functions of torch that are also methods of tensors
    "sum": "matmul mm bmm addmm addbmm baddbmm addmv mv addr dot inner outer sum cumsum* index_add* scatter_add* mean "
    "nansum trace",
    "noise": "add* sub* mul* div* true_divide* pow* exp* exp2 expm1 log* log2 log10 log1p sqrt* rsqrt* reciprocal* "
    "square* sigmoid* tanh* sin* cos* tan* asin acos atan atan2 sinh cosh asinh acosh atanh erf erfc erfinv softmax "
    "log_softmax logsumexp norm std var prod cumprod lerp* addcmul* addcdiv* sinc logaddexp diff dist cdist "
    "hypot remainder* fmod* cross renorm logit nan_to_num cov median",
    "exact": "reshape view transpose t permute contiguous clone detach flatten unflatten squeeze unsqueeze expand "
    "expand_as repeat tile narrow select chunk split split_with_sizes tensor_split unbind roll flip rot90 tril* triu* "
    "diag diagonal gather index_select masked_fill* masked_select where take take_along_dim abs* neg* negative* sign* "
    "floor* ceil* round* trunc* maximum minimum max min amax amin argmax argmin all any eq* ne* lt* le* gt* ge* "
    "greater greater_equal less less_equal not_equal equal logical_and logical_or logical_not logical_xor isnan isinf "
    "isfinite clamp* clamp_min* clamp_max* clip* topk sort argsort scatter* index_fill* index_copy* movedim swapaxes "
    "repeat_interleave bitwise_and bitwise_or bitwise_not bitwise_xor floor_divide* relu* heaviside copysign cummax "
    "cummin kthvalue mode bincount searchsorted unfold",
    "random": "bernoulli* multinomial dropout* rand_like randn_like randint_like normal*",
}
_TORCH = {
    "sum": "einsum chain_matmul tensordot",
    "noise": "layer_norm batch_norm group_norm rms_norm cosine_similarity",
    "exact": "cat concat concatenate stack hstack vstack dstack broadcast_to bucketize embedding",
    "random": "rand randn randint randperm empty empty_like dropout",
}
_TENSOR = {
    "sum": "__matmul__ __rmatmul__",
    "noise": "__add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __truediv__ __rtruediv__ "
    "__itruediv__ __div__ __rdiv__ __idiv__ __pow__ __rpow__ __ipow__ __mod__",
    "exact": "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ __xor__ __invert__ __neg__ __abs__ __iand__ "
    "__ior__ __getitem__ __setitem__ __floordiv__ masked_scatter masked_scatter_ fill_ zero_ copy_ float half bfloat16 "
    "double int long bool to type type_as view_as reshape_as resize_as_ __ifloordiv__ new_zeros new_ones new_full",
    "random": "uniform_ random_ exponential_ new_empty",
}
_MINT = {  # of MindSpore, with the signatures of torch
    "sum": "matmul bmm mm addmm sum cumsum mean index_add scatter_add baddbmm",
    "noise": "add sub mul div pow exp log sqrt rsqrt reciprocal square sigmoid tanh sin cos erf softmax log_softmax "
    "norm var std prod lerp",
    "exact": "cat stack reshape permute transpose split chunk narrow index_select gather where abs neg maximum minimum "
    "max min argmax eq ne lt le gt ge clamp masked_fill flatten squeeze unsqueeze tril triu topk sort equal "
    "greater less logical_and logical_or logical_not",
    "random": "rand randn randint empty multinomial",
}
_NPU = (
    "npu_rms_norm npu_add_rms_norm npu_swiglu npu_rotary_mul npu_gelu npu_fast_gelu fast_gelu npu_fusion_attention "
    "npu_scaled_masked_softmax"
)
_RANKS = (
    "all_reduce all_gather all_to_all broadcast reduce reduce_scatter scatter gather send recv isend irecv "
    "all_gather_into_tensor reduce_scatter_tensor all_to_all_single batch_isend_irecv barrier"
)
_AUTOCAST = frozenset(
    "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d matmul mm bmm addmm addbmm baddbmm "
    "addmv mv addr einsum chain_matmul tensordot inner dot __matmul__ __rmatmul__ scaled_dot_product_attention "
    "prelu".split()
)
_WORDS = {
    "gelu": ("none", "tanh"),
    "npu_gelu": ("none", "tanh"),
    "pad": ("constant", "reflect", "replicate", "circular"),
    "div": ("trunc", "floor"),
    "interpolate": ("nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area"),
    "grid_sample": ("bilinear", "nearest", "bicubic", "zeros", "border", "reflection"),
    "norm": ("fro", "nuc"),
    "npu_fusion_attention": ("BSH", "SBH", "BSND", "BNSD"),
    "npu_rotary_mul": ("half", "interleave"),
    "scatter": ("add", "multiply"),
}
_ALWAYS_IN_PLACE = frozenset("__iadd__ __isub__ __imul__ __itruediv__ __idiv__ __ipow__ __iand__ __ior__ __setitem__ "
                             "__ifloordiv__".split())  # fmt: skip
_RENAMED = {"__div__": "__truediv__", "__rdiv__": "__rtruediv__", "__idiv__": "__itruediv__"}
ROUNDED_ONCE = frozenset(
    "add sub mul div true_divide sqrt reciprocal square __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ "
    "__rmul__ __imul__ __truediv__ __rtruediv__ __itruediv__".split()
)
SEPARATE = frozenset(  # each element of the result depends on the elements of the arguments at its place
    "gelu silu mish elu selu celu sigmoid tanh softplus softsign logsigmoid hardswish hardsigmoid tanhshrink "
    "leaky_relu relu relu6 hardtanh add sub mul div true_divide pow exp exp2 expm1 log log2 log10 log1p sqrt rsqrt "
    "reciprocal square sin cos tan asin acos atan sinh cosh erf erfc abs neg negative sign floor ceil round trunc "
    "maximum minimum eq ne lt le gt ge logical_and logical_or logical_not isnan isinf clamp where lerp addcmul addcdiv "
    "clone contiguous float half bfloat16 double __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ "
    "__rtruediv__ __pow__ __rpow__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __neg__ __abs__ fast_gelu npu_gelu".split()
)
ROW_BY_ROW = {  # a row of the result depends on a row of the arguments, and on what all rows share
    "softmax": "last", "log_softmax": "last", "layer_norm": "norm", "rms_norm": "norm", "linear": "product",
    "matmul": "product", "bmm": "product", "mm": "product", "__matmul__": "product",
    "scaled_dot_product_attention": "attention",
}  # fmt: skip
_OPERATORS = re.compile(r"(?<!\S)(?!__)\S+|__[gs]etitem__")  # names that are no Python operator
STEPPED = frozenset(  # a step function reads a rounded quotient, or a rounded product with a power of ten
    "floor_divide __floordiv__ __ifloordiv__ remainder fmod __mod__ div round".split()
)
STEPPED_BY = {"div": "rounding_mode", "round": "decimals"}  # only with this keyword
INDICES = frozenset("argmax argmin argsort topk sort max min median mode kthvalue cummax cummin".split())
COMPOSITE = frozenset("rms_norm normalize cosine_similarity instance_norm".split())  # several autograd nodes
TURNED = frozenset("linear matmul mm bmm addmm baddbmm __matmul__ __rmatmul__ einsum".split())  # may end in a view

PRODUCTS = frozenset("linear matmul mm bmm __matmul__".split())  # of two operands
STOPPED = {  # kinds of the table that are not replayed
    "random": ("random", "it draws random numbers"),
    "ranks": ("not in table", "it needs the tensors of other ranks"),
}


def row_of(call: Call) -> Optional[CallRow]:
    """Return the line of a call; None if no table has it."""
    return _rows().get((call.prefix, call.name))


@cache
def _rows() -> dict[tuple[str, str], CallRow]:
    found: dict[tuple[str, str], CallRow] = {}
    _add(found, "Functional", "nn.functional.", _FUNCTIONAL)
    _add(found, "Torch", "", _BOTH)
    _add(found, "Torch", "", _TORCH)
    _add(found, "Tensor", "Tensor.", _BOTH)
    _add(found, "Tensor", "Tensor.", _TENSOR)
    _add(found, "Mint", "", _MINT)
    _add(found, "MindSpore.Tensor", "Tensor.", {kind: _OPERATORS.sub("", words) for kind, words in _TENSOR.items()})
    _add(found, "MintFunctional", "nn.functional.", _FUNCTIONAL)
    found.update((("NPU", name), CallRow(name, "npu", words=_WORDS.get(name, ()))) for name in _NPU.split())
    found.update((("Distributed", name), CallRow(name, "ranks")) for name in _RANKS.split())
    return found


def _add(found: dict[tuple[str, str], CallRow], prefix: str, path: str, kinds: dict[str, str]) -> None:
    for kind, text in kinds.items():
        for word in text.split():
            name = word.rstrip("*")
            for one in (name, f"{name}_") if word.endswith("*") and path.startswith("Tensor") else (name,):
                found[prefix, one] = _row(path, one, kind)


def _row(path: str, name: str, kind: str) -> CallRow:
    plain = name if name.startswith("__") else name.rstrip("_")
    inplace = name in _ALWAYS_IN_PLACE or plain != name
    padding = ("same", "valid") if plain.startswith("conv") else ()
    losses = REDUCTIONS if plain.endswith(("loss", "entropy", "logits", "kl_div")) else ()
    words = (*_WORDS.get(plain, ()), *padding, *losses)
    return CallRow(path + _RENAMED.get(name, name), kind, plain in _AUTOCAST, inplace, words)
