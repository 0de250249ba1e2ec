"""Properties of operators by type: the one module that knows operators by name.

A row of TABLE has the canonical name, its traits, and the spellings of PyTorch and aten, MindSpore and mint,
TensorFlow, ONNX and GE that are not the canonical name in other letters. Rules check traits and never names, so that
the same tensors get the same verdict under every spelling. These parts of names are recognised without a row:
    case and underscores     layer_norm, LayerNorm, layernorm
    namespaces, overloads    aten::_softmax.int, torch.nn.functional.softmax
    versions, GE's constant  SoftmaxV2, ReduceSumD (its attributes are constants)
    in place                 add_, __iadd__, InplaceAdd
    gradients                SoftmaxGrad, MaxPoolGradWithArgmax, native_layer_norm_backward, Conv2DBackpropFilterD
    numbers and letters      dropout_1_2, softmax_b
A name without a row gets the traits of its words: npu_scaled_masked_softmax has a mask and a softmax.

Sources: torch.nn.functional and aten/native_functions.yaml, mindspore.ops.operations and mindspore.mint, TensorFlow's
raw_ops, the ONNX operator list, and the operator prototypes (op_proto) of CANN.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from npucmp.model.dump import Operator, Run

SPELLINGS = 1 << 18  # spellings in the caches; each name in a file of weights may be a different one

TRAITS = {
    "sums": "adds terms that may cancel",
    "elementwise": "computes each element of its result from the same element of its operands alone",
    "function": "computes each element by a function of one element, without cancellation",
    "contracts": "sums products: matrix products, convolutions, attention",
    "multilinear": "its gradient by one operand reads only the other operands",
    "rises": "is the larger the larger its operand: only large positive operands overflow",
    "exponential": "multiplies a relative error by the size of its operand",
    "bounded slope": "passes on an absolute error at about its size: sin, remainders, sigmoid",
    "norm": "divides by a deviation: a constant factor of its operand cancels",
    "normalises": "scales the values of a layer to one size, and multiplies them by weights of its own",
    "normalises rows": "scales each row to one size, by the mean and deviation of the row",
    "spread": "a square of deviations, or its root",
    "logarithm": "converts a relative error of its operand to an absolute error",
    "quotient": "divides: its result is large where its divisor is small",
    "reciprocal": "one divided by its operand",
    "tangent": "has poles in the middle of its range",
    "power": "multiplies a relative error by its exponent",
    "poles": "computes infinities from finite values",
    "non-smooth": "selects, so its gradient jumps: a small error may change a selection",
    "bounds": "returns one of several values, the larger or the smaller",
    "averages": "keeps running statistics, on which its gradient does not depend",
    "smooth": "does not select, nor does any operator inside it",
    "picks": "reads or writes rows at given indices",
    "looks up": "reads rows of a table of weights by index",
    "rectifies": "returns values above zero, and zero for all others",
    "saturates": "is flat far from zero, where its gradient vanishes",
    "loss": "compares the output of a network with its target",
    "classes": "a loss of logits of several classes and the class of each sample",
    "reads logarithms": "a loss that expects logarithms of probabilities",
    "squashes": "a loss that applies a sigmoid to each element of its input",
    "pairs": "a loss of each element and its own target",
    "copies": "copies the values that it reads unchanged",
    "hands on": "copies the values that it reads, possibly with another dtype or layout",
    "views": "returns a view of the same memory",
    "moves axes": "returns its input with its axes in another order",
    "saves nothing": "its gradient reads none of its inputs and outputs",
    "masks": "inserts a given value, which may be minus infinity",
    "fades": "ignores values that are far below the others: softmax, exp",
    "shifts": "shifts, scales or joins its inputs, so a mask remains a mask",
    "collective": "communicates with other ranks",
    "point to point": "communicates with one other rank",
    "one to all": "sends the data of one rank to the others",
    "receives": "writes data of other ranks into given memory",
    "exchanges": "sends a part to every rank of the group and receives one from each",
    "sums ranks": "sums the data of ranks, so it may overflow by itself",
    "asynchronous": "returns before its outputs are complete",
    "random": "generates random numbers",
    "drops": "replaces some elements by zeros",
    "rows sum to 1": "its elements along an axis sum to one",
    "at least 0": "no element is below 0",
    "at least -1": "no element is below -1",
    "at most 1": "no element is above 1",
    "at most 0": "no element is above 0",
    "centres": "a norm that subtracts the mean",
    "permutes": "returns its input elements in another order",
    "keeps sums": "its gradient has the same sum as the incoming gradient",
    "ranks": "returns its input elements sorted by size, each once",
    "largest": "returns the largest element that it reads",
    "smallest": "returns the smallest element that it reads",
    "in place": "overwrites what it reads",
    "overwrites": "writes to given memory without reading it",
    "uninitialised": "returns memory that no operator has written",
    "constant": "is not executed: a constant, a placeholder",
    "inserted": "is inserted by GE's compiler",
    "stored": "is stored in the graph, like weights",
    "reads a weight": "reads a variable of the network",
    "loops back": "passes a value to the next iteration of a loop",
    "gradient": "computes a gradient",
    "updates": "a step of an optimizer: overwrites a parameter",
}


class OpType(NamedTuple):
    """One operator type, in any spelling.

    name        canonical, "" if no row of the table has it
    parameters  positions of the inputs that are weights, biases or running statistics
    workspaces  positions of the outputs that only its own gradient reads, with device-specific content
    """

    name: str
    traits: frozenset[str]
    parameters: tuple[int, ...] = ()
    workspaces: tuple[int, ...] = ()

    def has(self, *traits: str) -> bool:
        """Whether it has any of these traits."""
        return not self.traits.isdisjoint(traits)


class OpTypeRow(NamedTuple):
    name: str
    traits: str = ""  # separated by commas
    spellings: str = ""
    parameters: tuple[int, ...] = ()
    workspaces: tuple[int, ...] = ()


TABLE = (
    # sums and differences
    OpTypeRow("add", "elementwise, sums, saves nothing, shifts, keeps sums", "iadd radd TensorAdd scalar_add"),
    OpTypeRow("sub", "elementwise, sums, saves nothing, shifts, keeps sums", "isub rsub subtract"),
    OpTypeRow("add_n", "sums, saves nothing, shifts, keeps sums", "AccumulateNV2"),
    OpTypeRow("bias_add", "sums, saves nothing, shifts, keeps sums", "", (1,)),
    OpTypeRow("lerp", "elementwise, sums"),
    OpTypeRow("addcmul", "elementwise, sums"),
    OpTypeRow("addcdiv", "elementwise, sums"),
    OpTypeRow("sum", "sums, saves nothing", "ReduceSum nansum"),
    OpTypeRow("mean", "sums, saves nothing, keeps sums", "ReduceMean nanmean ReduceMeanWithCount"),
    OpTypeRow("cumsum", "sums, saves nothing"),
    OpTypeRow("norm", "at least 0", "vector_norm linalg_vector_norm LpNorm ReduceL2 L2Loss LpNormV2"),
    OpTypeRow("prod", "", "ReduceProd"),
    # products
    OpTypeRow("mul", "elementwise, shifts, multilinear", "imul rmul multiply Muls"),
    OpTypeRow("neg", "saves nothing", "negative"),
    OpTypeRow("square", "function, elementwise, at least 0"),
    OpTypeRow("sqrt", "function, elementwise, at least 0"),
    OpTypeRow("linear", "contracts, multilinear", "Dense FullyConnection NonDynamicallyQuantizableLinear", (1, 2)),
    OpTypeRow("matmul", "contracts, multilinear", "imatmul rmatmul mm MatMulV3 Gemm mv vdot", (2,)),
    OpTypeRow("bmm", "contracts, multilinear", "BatchMatMul BatchMatMulV3", (2,)),
    OpTypeRow("addmm", "contracts, multilinear", "", (0, 2)),
    OpTypeRow("baddbmm", "contracts, multilinear", "addbmm"),
    OpTypeRow("bilinear", "contracts, multilinear", "", (2, 3)),
    OpTypeRow("einsum", "contracts, multilinear"),
    OpTypeRow("dot", "contracts, multilinear", "tensordot inner"),
    OpTypeRow("conv1d", "contracts, multilinear", "", (1, 2)),
    OpTypeRow("conv2d", "contracts, multilinear", "Conv Conv2DCompress convolution", (1, 2)),
    OpTypeRow("conv3d", "contracts, multilinear", "", (1, 2)),
    OpTypeRow("conv_transpose1d", "contracts, multilinear", "", (1, 2)),
    OpTypeRow("conv_transpose2d", "contracts, multilinear", "ConvTranspose Conv2DTranspose", (1, 2)),
    OpTypeRow("conv_transpose3d", "contracts, multilinear", "", (1, 2)),
    OpTypeRow("depthwise_conv2d", "contracts, multilinear", "depthwise_conv2d_native", (1, 2)),
    OpTypeRow("attention", "contracts, fades", "scaled_dot_product_attention FlashAttentionScore npu_fusion_attention "
        "flash_attn_func flash_attn_varlen_func PromptFlashAttention IncreFlashAttention FusedInferAttentionScore"),
    # functions
    OpTypeRow("exp", "function, exponential, rises, at least 0, fades"),
    OpTypeRow("expm1", "function, exponential, rises"),
    OpTypeRow("exp2", "function, exponential, rises, at least 0"),
    OpTypeRow("sigmoid", "function, exponential, bounded slope, saturates, at least 0, at most 1, fades"),
    OpTypeRow("softmax", "function, exponential, rows sum to 1, at least 0, at most 1, fades", "softmax_int"),
    OpTypeRow("log_softmax", "exponential, poles, at most 0"),
    OpTypeRow("logsumexp", "exponential, fades", "ReduceLogSumExp"),
    OpTypeRow("cosh", "function, exponential, at least 0"),
    OpTypeRow("sinh", "function, exponential"),
    OpTypeRow("silu", "function, exponential, bounded slope", "Swish"),
    OpTypeRow("softplus", "function, exponential, rises, bounded slope, at least 0"),
    OpTypeRow("gelu", "function", "FastGelu QuickGelu NewGELUActivation GELUActivation"),
    OpTypeRow("tanh", "function, saturates, at least -1, at most 1"),
    OpTypeRow("erf", "function, at least -1, at most 1"),
    OpTypeRow("sin", "function, bounded slope, at least -1, at most 1"),
    OpTypeRow("cos", "function, bounded slope, at least -1, at most 1"),
    OpTypeRow("remainder", "bounded slope, non-smooth", "FloorMod"),
    OpTypeRow("fmod", "bounded slope, non-smooth"),
    OpTypeRow("frac", "bounded slope, non-smooth"),
    OpTypeRow("mod", "bounded slope, non-smooth"),
    OpTypeRow("log", "function, logarithm, poles", "ln"),
    OpTypeRow("log2", "function, logarithm, poles"),
    OpTypeRow("log10", "function, logarithm, poles"),
    OpTypeRow("log1p", "function, logarithm, poles"),
    OpTypeRow("logit", "poles"),
    OpTypeRow("div", "elementwise, quotient, poles, shifts",
        "idiv rdiv truediv itruediv rtruediv true_divide divide RealDiv DivNoNan"),
    OpTypeRow("rsqrt", "function, elementwise, quotient, poles"),
    OpTypeRow("reciprocal", "function, reciprocal, poles", "Inv"),
    OpTypeRow("tan", "tangent"),
    OpTypeRow("pow", "power, poles", "ipow rpow"),
    # normalisations
    OpTypeRow("layer_norm", "norm, normalises, normalises rows, centres", "native_layer_norm LayerNormalization",
        (1, 2, 3)),
    OpTypeRow("rms_norm", "normalises", "npu_rms_norm T5LayerNorm", (1, 2)),
    OpTypeRow("batch_norm", "norm, normalises, centres, averages",
        "batch_norm1d batch_norm2d batch_norm3d native_batch_norm "
        "cudnn_batch_norm BatchNormalization BNInfer SyncBatchNorm", (1, 2, 3, 4)),
    OpTypeRow("fused_batch_norm", "norm, normalises, centres, averages", "", (1, 2, 3, 4), (3, 4)),
    OpTypeRow("fused_batch_norm_v3", "norm, normalises, centres, averages", "", (1, 2, 3, 4), (3, 4, 5)),
    OpTypeRow("group_norm", "norm, normalises, centres", "native_group_norm", (1, 2, 3)),
    OpTypeRow("instance_norm", "norm, normalises, centres, averages", "instance_norm1d instance_norm2d instance_norm3d",
        (1, 2, 3, 4)),
    OpTypeRow("std", "norm", "ReduceStd std_mean"),
    OpTypeRow("var", "norm, spread", "var_mean ReduceVariance"),
    # losses
    OpTypeRow("cross_entropy", "loss, classes, at least 0",
        "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits"),
    OpTypeRow("nll_loss", "loss, classes, reads logarithms"),
    OpTypeRow("binary_cross_entropy_with_logits", "loss, pairs, squashes, at least 0",
        "BCEWithLogitsLoss SigmoidCrossEntropyWithLogits"),
    OpTypeRow("mse_loss", "loss, pairs, at least 0", "l1_loss smooth_l1_loss huber_loss binary_cross_entropy BCELoss"),
    # choices
    OpTypeRow("relu", "non-smooth, rectifies, at least 0", "relu6"),
    OpTypeRow("leaky_relu", "function, non-smooth",
        "prelu_kernel elu celu selu rrelu hardtanh hardswish hardsigmoid hswish hsigmoid threshold"),
    OpTypeRow("prelu", "non-smooth", "", (1,)),
    OpTypeRow("max", "non-smooth, bounds, largest",
        "maximum amax ReduceMax ReduceMaxD argmax ArgMaxWithValue fmax cummax"),
    OpTypeRow("min", "non-smooth, bounds, smallest", "minimum amin ReduceMin argmin ArgMinWithValue fmin cummin"),
    OpTypeRow("max_pool1d", "non-smooth, keeps sums"),
    OpTypeRow("max_pool2d", "non-smooth, keeps sums",
        "MaxPool MaxPoolWithArgmax max_pool2d_with_indices adaptive_max_pool2d"),
    OpTypeRow("max_pool3d", "non-smooth, keeps sums"),
    OpTypeRow("clamp", "non-smooth, bounds", "clip ClipByValue clamp_min clamp_max"),
    OpTypeRow("topk", "non-smooth, largest, keeps sums, ranks"),
    OpTypeRow("sort", "non-smooth, permutes, keeps sums, ranks", "argsort msort"),
    OpTypeRow("sign", "non-smooth"),
    OpTypeRow("round", "non-smooth", "rint"),
    OpTypeRow("floor", "non-smooth", "FloorDiv floor_divide"),
    OpTypeRow("ceil", "non-smooth"),
    OpTypeRow("abs", "non-smooth, at least 0"),
    OpTypeRow("where", "non-smooth, masks", "Select SelectV2"),
    OpTypeRow("masked_fill", "non-smooth, masks"),
    OpTypeRow("masked_select", "non-smooth, masks, picks, keeps sums"),
    # moving values
    OpTypeRow("embedding", "looks up, keeps sums", "GatherV2_embedding", (1,)),
    OpTypeRow("embedding_bag", "looks up", "", (1,)),
    OpTypeRow("gather", "picks, keeps sums", "GatherD GatherElements take_along_dim"),
    OpTypeRow("index_select", "picks, keeps sums", "GatherNd take"),
    OpTypeRow("cat", "saves nothing, shifts", "concat concatenate ConcatV2"),
    OpTypeRow("stack", "saves nothing, shifts", "Pack"),
    OpTypeRow("one_hot", "picks", "OneHotD"),
    OpTypeRow("index_add", "picks"),
    OpTypeRow("index_put", "picks"),
    OpTypeRow("repeat", "saves nothing, shifts, keeps sums", "repeat_interleave Tile"),
    OpTypeRow("avg_pool2d", "saves nothing, keeps sums", "AvgPool adaptive_avg_pool2d"),
    OpTypeRow("interpolate", "saves nothing, keeps sums",
        "ResizeNearestNeighbor ResizeBilinear upsample_nearest2d upsample_bilinear2d"),
    OpTypeRow("rotary", "", "npu_rotary_mul RotaryMul ApplyRotaryPosEmb RotaryPositionEmbedding"),
    OpTypeRow("identity", "copies, hands on", "clone contiguous copy"),
    OpTypeRow("tensor_move", "copies, hands on, inserted", "MemcpyAsync"),
    OpTypeRow("trans_data", "copies, hands on, inserted", "TransData_RNN npu_format_cast"),
    OpTypeRow("cast", "hands on, inserted", "to type float half bfloat16 type_as convert_element_type to_copy"),
    OpTypeRow("read_variable", "hands on, reads a weight", "ReadVariableOp"),
    OpTypeRow("print", "hands on"),
    OpTypeRow("enter", "hands on", "RefEnter"),
    OpTypeRow("reshape", "views", "view view_as unsafe_view flatten unflatten"),
    OpTypeRow("transpose", "views, moves axes", "t permute swapaxes moveaxis movedim"),
    OpTypeRow("slice", "views, picks, keeps sums", "getitem StridedSlice narrow select_copy"),
    OpTypeRow("split", "views", "chunk unbind SplitV Unpack Unstack"),
    OpTypeRow("squeeze", "views", "unsqueeze ExpandDims"),
    OpTypeRow("expand", "views", "expand_as BroadcastTo as_strided detach"),
    # filling
    OpTypeRow("full", "masks", "full_like new_full fill fill_diagonal Fills"),
    OpTypeRow("tril", "masks"),
    OpTypeRow("triu", "masks", "MaskedTriu"),
    OpTypeRow("pad", "masks", "PadV2 PadV3 MirrorPad constant_pad_nd"),
    OpTypeRow("scatter", "masks, picks", "scatter_add ScatterNd ScatterNdUpdate ScatterUpdate index_fill"),
    OpTypeRow("empty", "uninitialised", "empty_like new_empty empty_strided EmptyWithFormat"),
    OpTypeRow("mem_set", "inserted", "AtomicAddrClean DynamicAtomicAddrClean"),
    OpTypeRow("setitem", "in place, overwrites, picks", "TensorCopySlices"),
    OpTypeRow("const", "constant, stored", "Constant"),
    OpTypeRow("placeholder", "constant", "NoOp"),
    OpTypeRow("next_iteration", "loops back", "RefNextIteration"),
    # random
    OpTypeRow("dropout", "random, non-smooth, drops", "native_dropout FusedDropout alpha_dropout feature_dropout"),
    OpTypeRow("dropout_do_mask", "masks, non-smooth, drops"),
    OpTypeRow("dropout_mask", "random", "DropOutGenMask StatelessDropOutGenMask"),
    OpTypeRow("rand", "random",
        "randn randint randperm rand_like randn_like RandomUniform RandomStandardNormal RandomNormal "
        "TruncatedNormal StandardNormal StatelessRandomUniformV2 normal uniform exponential"),
    OpTypeRow("bernoulli", "random", "multinomial"),
    # communication
    OpTypeRow("all_reduce", "collective, sums ranks", "HcomAllReduce"),
    OpTypeRow("reduce", "collective, sums ranks", "HcomReduce"),
    OpTypeRow("reduce_scatter", "collective, receives, sums ranks",
        "HcomReduceScatter reduce_scatter_tensor reduce_scatter_into_tensor reduce_scatter_base"),
    OpTypeRow("all_gather", "collective, receives",
        "HcomAllGather all_gather_into_tensor all_gather_base all_gather_object"),
    OpTypeRow("all_to_all", "collective, receives, exchanges",
        "HcomAllToAll HcomAllToAllV AllToAllV all_to_all_single"),
    OpTypeRow("neighbor_exchange", "collective, receives"),
    OpTypeRow("broadcast", "collective, receives, one to all", "HcomBroadcast"),
    OpTypeRow("send", "collective, point to point", "HcomSend"),
    OpTypeRow("recv", "collective, receives, point to point", "Receive HcomReceive"),
    OpTypeRow("isend", "collective, asynchronous, point to point", "batch_isend_irecv"),
    OpTypeRow("irecv", "collective, receives, asynchronous, point to point"),
    OpTypeRow("barrier", "collective", "HcomBarrier"),
)  # fmt: skip

# traits from a name without a row, also that of a module ("LlamaRMSNorm"): by parts of the name, and by its words
_PARTS = (
    ("contracts", r"linear|matmul|mm$|bmm|conv|einsum|dot|attention"),
    ("non-smooth", r"relu|hardtanh|hardswish|hardsigmoid|(?<!soft)max|(?<!soft)min|clamp|clip|topk|sort|argm|where"
                   r"|mask|dropout"),
    ("rows sum to 1", r"(?<!log)softmax$"),
    ("fades", r"(?<!log)softmax$|attention$"),
    ("smooth", r"linear$|dense$|norm|conv|embedding|softmax|gelu|silu|tanh|sigmoid"),
    ("drops", r"dropout(\dd)?$"),
    ("random", r"dropout|drop_?path|stochasticdepth|bernoulli|multinomial|poisson(?!nll)|^rand|random|gumbel|rrelu"
               r"|normal$|uniform$|exponential$|geometric$|cauchy$|fractionalmaxpool|genbitmask|uniform(real|int)$"
               r"|candidatesampler"),
    ("collective", r"^hcom|allreduce|allgather|alltoall|reducescatter"),
    ("normalises", r"norm(1d|2d|3d)?$"),
    ("looks up", r"embedding$"),
    ("updates", r"^(resource|fused|sparse)*apply(?=momentum|ada|rms|grad|ftrl|prox|cent|lars|keras|power|add)"
                r"|^(fused|npu)*(adam|lamb(?!d)|sgd|lars|adagrad|rmsprop)"),
    ("receives", r"recv|allgather|alltoall|reducescatter"),
    ("sums ranks", r"allreduce|reducescatter"),
)  # fmt: skip
_WORDS = {
    "masks": {"mask", "masked", "where", "select", "full", "fill", "filled", "triu", "tril", "pad", "scatter"},
    "views": {"view", "reshape", "slice", "narrow", "split", "transpose", "permute", "flatten", "expand", "strided"},
}
_TRAITS = [(trait, re.compile(parts)) for trait, parts in _PARTS]
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")  # words of masked_fill or MaskedFill
_WEIGHT = re.compile(
    r"(^|[./])(([a-zA-Z0-9]+_)*(weight|bias)(_scale(_inv)?)?|gamma|beta|embedding_table|running_(mean|var)"
    r"|moving_(mean|variance)|num_batches_tracked)$"
)
_CHOOSES = ("non-smooth", "random", "masks", "collective", "uninitialised", "constant", "loops back", "in place")
_IN_PLACE = re.compile(r"[A-Za-z0-9]_$|^__i[a-z]+__$|^__setitem__$|^(Apply|Assign|Scatter|Inplace)([A-Z]|$)")
_GRADIENT = re.compile(
    r"_?(backprop(input|filter)?|backward(_data)?|grad(with\w+)?|dx|dw)(?=(d|v\d+)*$)", re.IGNORECASE
)
_NAMESPACE = re.compile(
    r"^((aten|prims|torch|torch_npu|npu|atb|mindspore|mint|ops|tf|raw_ops|distributed|nn|functional|tensor)(::|\.))+",
    re.IGNORECASE,
)
_LABEL = re.compile(r"(?<=[a-zA-Z0-9]{2})(_([0-9]+|[a-zA-Z][0-9]*))+$")  # of one of several: dropout_1_2, softmax_b
_SUFFIX = re.compile(r"(d|v\d|ext)$")
_COMMUNICATION = ("Distributed.", "MintDistributed.", "MindSpeed.")  # records of msprobe


def op_type_of(operator: Operator) -> OpType:
    """The type of an operator. The name of its record may also mark it as a collective."""
    found = op_type(operator.op_type)
    if operator.name.startswith(_COMMUNICATION) and not found.has("collective"):
        return found._replace(traits=found.traits | {"collective"})
    return found


def is_gradient(operator: Operator) -> bool:
    """Return whether an operator belongs to a backward pass, by the dump or by its type."""
    return operator.phase == "backward" or (not operator.phase and op_type(operator.op_type).has("gradient"))


def is_weight(operator: Operator) -> bool:
    """Return whether a record is a weight, a bias or a running statistic of a weight file: by its name, and because it
    has no input."""
    alone = not operator.reads_recorded and all(tensor.is_output for tensor in operator.tensors)
    return alone and names_weight(operator.name)


def names_weight(name: str) -> bool:
    """Return whether a name is that of a weight, a bias or a running statistic."""
    return bool(_WEIGHT.search(name))


def holds_weights_alone(run: Run) -> bool:
    """Return whether a run is a checkpoint, which has no operators and therefore no inputs."""
    return bool(run.operators) and all(map(is_weight, run.operators))


@lru_cache(maxsize=SPELLINGS)
def op_type(spelled: str) -> OpType:
    """The type of an operator by its spelling. Any text is accepted; an unknown one gets no traits."""
    name, _, _ = _NAMESPACE.sub("", spelled[:200]).partition(".")  # removes aten's overloads
    if _row(_key(name)) is None:
        name = _LABEL.sub("", name)
    bare = _GRADIENT.sub("", name)
    more = {"in place"} if _IN_PLACE.search(name) else set()
    more |= {"gradient"} if bare not in ("", name) else set()
    row = _row(_key(name)) or _row(_key(bare)) or _row(_key(bare).replace("inplace", ""))
    if row is None:
        return _unknown(frozenset(more | _traits_by_name(name)))
    traits = {*filter(None, row.traits.split(", "))}
    more |= {"smooth"} if traits.isdisjoint(_CHOOSES) else set()
    slots = () if "gradient" in more else (row.parameters, row.workspaces)
    return OpType(row.name, frozenset(traits | more), *slots)


@lru_cache(maxsize=SPELLINGS)
def same_type(spelled: str) -> str:
    """A word that all spellings of one operator share; for an operator without a row, its own letters."""
    name, _, _ = _NAMESPACE.sub("", spelled[:200]).partition(".")
    key = _OWN.sub("", _key(name))
    known, end = op_type(spelled).name or _ALIKE.get(key) or op_type(key).name, _CLASS.search(key)
    return known or (op_type(end[0]).name if end else key)


def reads_heads_first(spelled: str) -> bool:
    """Whether attention reads (batch, heads, sequence, width) by its signature."""
    return _key(spelled) == "scaleddotproductattention"


@lru_cache(maxsize=1 << 10)
def _unknown(traits: frozenset[str]) -> OpType:
    return OpType("", traits)  # one object for all spellings with these traits


def _traits_by_name(name: str) -> set[str]:
    """The traits of an operator without a row."""
    words = {word.lower() for word in _WORD.findall(name)}
    key = _key(name)
    found = {trait for trait, parts in _TRAITS if parts.search(key)}
    return found | {trait for trait, trait_words in _WORDS.items() if trait_words & words}


def _key(name: str) -> str:
    return name.replace("_", "").lower()


def _row(key: str) -> OpTypeRow | None:
    """The row of a spelling, unchanged or without GE's suffixes."""
    while key not in _ROWS:
        shorter = _SUFFIX.sub("", key)
        if shorter == key or not shorter:
            return None
        key = shorter
    return _ROWS[key]


_ALIKE = {  # spellings of operators without a row, because no rule needs one: mindspore.ops, Tensor, ATB, torch
    "or": "logicalor", "and": "logicaland", "xor": "logicalxor", "invert": "logicalnot", "equal": "eq",
    "notequal": "ne", "greater": "gt", "greaterequal": "ge", "less": "lt", "lessequal": "le",
    "selfattention": "attention", "pagedattention": "attention",
}  # fmt: skip
_CLASS = re.compile(r"(rmsnorm|layernorm|linear|embedding)$")  # ends of LlamaRMSNorm, VocabParallelEmbedding
_OWN = re.compile(r"^npu(?=.)|(?<=.)operation$")
_ROWS = {_key(spelling): row for row in TABLE for spelling in (row.name, *row.spellings.split())}
