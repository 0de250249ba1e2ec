"""How frameworks spell the operators of the planter's networks: one row an operator."""

from __future__ import annotations

from typing import NamedTuple


class Spelling(NamedTuple):
    """pytorch and mint: record names of msprobe for PyTorch and for MindSpore's mint; the rest: operator types."""

    pytorch: str
    mint: str
    mindspore: str
    mindspore_backward: str
    ge: str
    ge_backward: str


SPELLINGS = {
    "linear": Spelling("Functional.linear", "MintFunctional.linear", "Dense", "DenseGrad", "MatMulV2", "MatMulV2Grad"),
    "matmul": Spelling("Torch.matmul", "Mint.matmul", "BatchMatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV2"),
    "conv2d": Spelling(
        "Functional.conv2d",
        "MintFunctional.conv2d",
        "Conv2D",
        "Conv2DBackpropFilter",
        "Conv2D",
        "Conv2DBackpropFilterD",
    ),
    "embedding": Spelling(
        "Functional.embedding",
        "MintFunctional.embedding",
        "Gather",
        "EmbeddingDenseBackward",
        "GatherV2",
        "EmbeddingDenseGrad",
    ),
    "layer_norm": Spelling(
        "Functional.layer_norm", "MintFunctional.layer_norm", "LayerNorm", "LayerNormGrad", "LayerNorm", "LayerNormGrad"
    ),
    "rms_norm": Spelling(
        "Functional.rms_norm", "Functional.rms_norm", "RmsNorm", "RmsNormGrad", "RmsNorm", "RmsNormGrad"
    ),
    "group_norm": Spelling(
        "Functional.group_norm", "MintFunctional.group_norm", "GroupNorm", "GroupNormGrad", "GroupNorm", "GroupNormGrad"
    ),
    "batch_norm": Spelling(
        "Functional.batch_norm", "MintFunctional.batch_norm", "BatchNorm", "BatchNormGrad", "BatchNorm", "BatchNormGrad"
    ),
    "softmax": Spelling(
        "Functional.softmax", "MintFunctional.softmax", "Softmax", "SoftmaxGrad", "SoftmaxV2", "SoftmaxGrad"
    ),
    "attention": Spelling(
        "Functional.scaled_dot_product_attention",
        "Functional.flash_attention_score",
        "FlashAttentionScore",
        "FlashAttentionScoreGrad",
        "FlashAttentionScore",
        "FlashAttentionScoreGrad",
    ),
    "cross_entropy": Spelling(
        "Functional.cross_entropy",
        "MintFunctional.cross_entropy",
        "SparseSoftmaxCrossEntropyWithLogits",
        "SparseSoftmaxCrossEntropyWithLogits",
        "SparseSoftmaxCrossEntropyWithLogits",
        "SparseSoftmaxCrossEntropyWithLogitsGrad",
    ),
    "mse_loss": Spelling(
        "Functional.mse_loss", "MintFunctional.mse_loss", "MSELoss", "MSELossGrad", "MseLoss", "MseLossGrad"
    ),
    "gelu": Spelling("Functional.gelu", "MintFunctional.gelu", "GeLU", "GeLUGrad", "Gelu", "GeluGrad"),
    "relu": Spelling("Functional.relu", "MintFunctional.relu", "ReLU", "ReluGrad", "Relu", "ReluGrad"),
    "silu": Spelling("Functional.silu", "MintFunctional.silu", "SiLU", "SiLUGrad", "Swish", "SwishGrad"),
    "sigmoid": Spelling("Torch.sigmoid", "Mint.sigmoid", "Sigmoid", "SigmoidGrad", "Sigmoid", "SigmoidGrad"),
    "tanh": Spelling("Torch.tanh", "Mint.tanh", "Tanh", "TanhGrad", "Tanh", "TanhGrad"),
    "dropout": Spelling(
        "Functional.dropout", "MintFunctional.dropout", "Dropout", "DropoutGrad", "DropOutDoMaskV3", "DropOutDoMaskV3"
    ),
    "max_pool2d": Spelling(
        "Functional.max_pool2d", "MintFunctional.max_pool2d", "MaxPool", "MaxPoolGrad", "MaxPool", "MaxPoolGrad"
    ),
    "avg_pool2d": Spelling(
        "Functional.adaptive_avg_pool2d",
        "MintFunctional.adaptive_avg_pool2d",
        "AdaptiveAvgPool2D",
        "AdaptiveAvgPool2DGrad",
        "AdaptiveAvgPool2d",
        "AdaptiveAvgPool2dGrad",
    ),
    "interpolate": Spelling(
        "Functional.interpolate",
        "MintFunctional.interpolate",
        "ResizeNearestNeighborV2",
        "ResizeNearestNeighborV2Grad",
        "ResizeNearestNeighborV2",
        "ResizeNearestNeighborV2Grad",
    ),
    "add": Spelling("Tensor.__add__", "Tensor.__add__", "Add", "AddGrad", "AddV2", "AddGrad"),
    "mul": Spelling("Tensor.__mul__", "Tensor.__mul__", "Mul", "MulGrad", "Mul", "MulGrad"),
    "sub": Spelling("Tensor.__sub__", "Tensor.__sub__", "Sub", "SubGrad", "Sub", "SubGrad"),
    "div": Spelling("Tensor.__truediv__", "Tensor.__truediv__", "RealDiv", "RealDivGrad", "RealDiv", "RealDivGrad"),
    "pow": Spelling("Tensor.pow", "Tensor.pow", "Pow", "PowGrad", "Pow", "PowGrad"),
    "rsqrt": Spelling("Torch.rsqrt", "Mint.rsqrt", "Rsqrt", "RsqrtGrad", "Rsqrt", "RsqrtGrad"),
    "exp": Spelling("Torch.exp", "Mint.exp", "Exp", "ExpGrad", "Exp", "ExpGrad"),
    "log": Spelling("Torch.log", "Mint.log", "Log", "LogGrad", "Log", "LogGrad"),
    "amax": Spelling("Torch.amax", "Mint.amax", "ReduceMax", "ReduceMaxGrad", "ReduceMaxD", "ReduceMaxGrad"),
    "mean": Spelling("Tensor.mean", "Tensor.mean", "ReduceMean", "ReduceMeanGrad", "ReduceMeanD", "ReduceMeanGrad"),
    "sum": Spelling("Torch.sum", "Mint.sum", "ReduceSum", "ReduceSumGrad", "ReduceSumD", "ReduceSumGrad"),
    "masked_fill": Spelling(
        "Tensor.masked_fill", "Tensor.masked_fill", "MaskedFill", "MaskedFillGrad", "MaskedFill", "MaskedFillGrad"
    ),
    "where": Spelling("Torch.where", "Mint.where", "Select", "SelectGrad", "SelectV2", "SelectGrad"),
    "cat": Spelling("Torch.cat", "Mint.cat", "Concat", "ConcatGrad", "ConcatD", "ConcatGrad"),
    "topk": Spelling("Torch.topk", "Mint.topk", "TopK", "TopKGrad", "TopKV2", "TopKGrad"),
    "gather": Spelling("Torch.gather", "Mint.gather", "GatherD", "GatherDGrad", "GatherElements", "GatherElementsGrad"),
    "index_select": Spelling(
        "Torch.index_select", "Mint.index_select", "Gather", "GatherGrad", "GatherV2", "GatherV2Grad"
    ),
    "index_add": Spelling(
        "Tensor.index_add", "Tensor.index_add", "IndexAdd", "IndexAddGrad", "InplaceIndexAdd", "IndexAddGrad"
    ),
    "reshape": Spelling("Tensor.reshape", "Tensor.reshape", "Reshape", "Reshape", "Reshape", "Reshape"),
    "transpose": Spelling("Tensor.permute", "Tensor.permute", "Transpose", "Transpose", "TransposeD", "TransposeD"),
    "slice": Spelling(
        "Tensor.__getitem__",
        "Tensor.__getitem__",
        "StridedSlice",
        "StridedSliceGrad",
        "StridedSlice",
        "StridedSliceGrad",
    ),
    "repeat": Spelling(
        "Tensor.repeat_interleave", "Tensor.repeat_interleave", "Tile", "ReduceSum", "TileD", "ReduceSumD"
    ),
    "empty": Spelling("Torch.empty", "Mint.empty", "Empty", "Empty", "Empty", "Empty"),
    "setitem": Spelling(
        "Tensor.__setitem__", "Tensor.__setitem__", "TensorCopySlices", "SliceGrad", "TensorCopySlices", "SliceGrad"
    ),
    "to": Spelling("Tensor.to", "Tensor.to", "Cast", "Cast", "Cast", "Cast"),
    "rope": Spelling(
        "NPU.npu_rotary_mul",
        "Functional.rotary_position_embedding",
        "ApplyRotaryPosEmb",
        "RotaryPositionEmbeddingGrad",
        "RotaryMul",
        "RotaryMulGrad",
    ),
    "accumulate": Spelling("Torch.add", "Mint.add", "AddN", "AddN", "AddN", "AddN"),
    "all_reduce": Spelling(
        "Distributed.all_reduce",
        "MintDistributed.all_reduce",
        "AllReduce",
        "AllReduce",
        "HcomAllReduce",
        "HcomAllReduce",
    ),
    "all_gather": Spelling(
        "Distributed.all_gather_into_tensor",
        "MintDistributed.all_gather_into_tensor",
        "AllGather",
        "AllGather",
        "HcomAllGather",
        "HcomAllGather",
    ),
    "reduce_scatter": Spelling(
        "Distributed.reduce_scatter_tensor",
        "MintDistributed.reduce_scatter_tensor",
        "ReduceScatter",
        "ReduceScatter",
        "HcomReduceScatter",
        "HcomReduceScatter",
    ),
    "all_to_all": Spelling(
        "Distributed.all_to_all_single",
        "MintDistributed.all_to_all_single",
        "AlltoAll",
        "AlltoAll",
        "HcomAllToAll",
        "HcomAllToAll",
    ),
    "send": Spelling("Distributed.send", "MintDistributed.send", "Send", "Send", "HcomSend", "HcomSend"),
    "recv": Spelling("Distributed.recv", "MintDistributed.recv", "Receive", "Receive", "HcomReceive", "HcomReceive"),
}
