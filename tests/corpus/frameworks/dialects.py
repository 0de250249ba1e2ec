"""The operators of TensorFlow, JAX and torch by the words of coding.py: word → (type in the framework, function).

A function takes and returns numpy arrays or the framework's; numbers that are no tensors are keyword arguments.
"""

from __future__ import annotations

from typing import Any, Callable

Dialect = dict[str, tuple[str, Callable[..., Any]]]


def tensorflow() -> Dialect:
    """Return the operators of TensorFlow, tf.raw_ops run eagerly; images are NHWC."""
    import tensorflow as tf

    r = tf.raw_ops

    def binary(op: Any) -> Callable[..., Any]:
        return lambda x, y: op(x=x, y=y)

    def unary(op: Any) -> Callable[..., Any]:
        return lambda x: op(x=x)

    def product(x: Any, y: Any, adjoint: bool = False) -> Any:
        if x.ndim == 2:
            return r.MatMul(a=x, b=y, transpose_b=adjoint)
        return r.BatchMatMulV2(x=x, y=y, adj_y=adjoint)

    def conv(x: Any, w: Any, stride: int, pad: str, groups: int) -> Any:
        strides = [1, stride, stride, 1]
        if groups > 1:
            return r.DepthwiseConv2dNative(input=x, filter=w, strides=strides, padding=pad)
        return r.Conv2D(input=x, filter=w, strides=strides, padding=pad)

    def batch_norm(x: Any, w: Any, b: Any, mean: Any, var: Any, epsilon: float) -> Any:
        found = r.FusedBatchNormV3(x=x, scale=w, offset=b, mean=mean, variance=var, epsilon=epsilon, is_training=False)
        return found[0]

    def max_pool(x: Any, k: int) -> Any:
        return r.MaxPool(input=x, ksize=[1, k, k, 1], strides=[1, k, k, 1], padding="VALID")

    def upsample(x: Any) -> Any:
        return r.ResizeNearestNeighbor(images=x, size=[2 * x.shape[1], 2 * x.shape[2]])

    return {
        "add": ("AddV2", binary(r.AddV2)), "sub": ("Sub", binary(r.Sub)), "mul": ("Mul", binary(r.Mul)),
        "div": ("RealDiv", binary(r.RealDiv)), "bias": ("BiasAdd", lambda x, b: r.BiasAdd(value=x, bias=b)),
        "max2": ("Maximum", binary(r.Maximum)), "ge": ("GreaterEqual", binary(r.GreaterEqual)),
        "square_difference": ("SquaredDifference", binary(r.SquaredDifference)),
        "exp": ("Exp", unary(r.Exp)), "rsqrt": ("Rsqrt", unary(r.Rsqrt)), "square": ("Square", unary(r.Square)),
        "erf": ("Erf", unary(r.Erf)), "tanh": ("Tanh", unary(r.Tanh)), "sigmoid": ("Sigmoid", unary(r.Sigmoid)),
        "neg": ("Neg", unary(r.Neg)), "pow": ("Pow", binary(r.Pow)),
        "relu": ("Relu", lambda x: r.Relu(features=x)), "relu6": ("Relu6", lambda x: r.Relu6(features=x)),
        "softmax": ("Softmax", lambda x: r.Softmax(logits=x)),
        "matmul": ("BatchMatMulV2", product), "matmul2": ("MatMul", product),
        "mean": ("Mean", lambda x, axes: r.Mean(input=x, axis=list(axes), keep_dims=True)),
        "sum": ("Sum", lambda x, axes: r.Sum(input=x, axis=list(axes), keep_dims=True)),
        "reshape": ("Reshape", lambda x, shape: r.Reshape(tensor=x, shape=list(shape))),
        "transpose": ("Transpose", lambda x, axes: r.Transpose(x=x, perm=list(axes))),
        "concat": ("ConcatV2", lambda *x, axis: r.ConcatV2(values=x, axis=axis)),
        "split": ("Split", lambda x, parts, axis: r.Split(axis=axis, value=x, num_split=parts)),
        "slice": ("StridedSlice", lambda x, axis, start, stop: _sliced(x, axis, start, stop)),
        "gather": ("GatherV2", lambda w, i: r.GatherV2(params=w, indices=i, axis=0)),
        "where": ("SelectV2", lambda c, x, y: r.SelectV2(condition=c, t=x, e=y)),
        "topk": ("TopKV2", lambda x, k: r.TopKV2(input=x, k=k).values),
        "pad": ("Pad", lambda x, pads: r.Pad(input=x, paddings=[list(p) for p in pads])),
        "conv": ("Conv2D", conv), "depthwise": ("DepthwiseConv2dNative", conv),
        "batch_norm": ("FusedBatchNormV3", batch_norm),
        "max_pool": ("MaxPool", max_pool), "upsample": ("ResizeNearestNeighbor", upsample),
        "stack": ("Pack", lambda *x, axis: r.Pack(values=x, axis=axis)),
    }  # fmt: skip


def jax() -> Dialect:
    """Return the operators of JAX by the names of its primitives; images are NHWC."""
    import jax as framework
    import jax.numpy as jnp
    from jax import lax

    framework.config.update("jax_platforms", "cpu")

    def conv(x: Any, w: Any, stride: int, pad: str, groups: int) -> Any:
        order = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, w, (stride, stride), pad, dimension_numbers=order, feature_group_count=groups
        )

    def pooled(x: Any, k: int) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, k, k, 1), (1, k, k, 1), "VALID")

    return {
        "add": ("add", jnp.add), "sub": ("sub", jnp.subtract), "mul": ("mul", jnp.multiply), "div": ("div", jnp.divide),
        "bias": ("add", jnp.add), "max2": ("max", jnp.maximum), "ge": ("ge", jnp.greater_equal),
        "exp": ("exp", jnp.exp), "rsqrt": ("rsqrt", lax.rsqrt), "square": ("integer_pow", jnp.square),
        "erf": ("erf", lax.erf), "tanh": ("tanh", jnp.tanh), "sigmoid": ("logistic", framework.nn.sigmoid),
        "neg": ("neg", jnp.negative), "pow": ("pow", jnp.power), "relu": ("max", lambda x: jnp.maximum(x, 0.0)),
        "relu6": ("clamp", lambda x: jnp.clip(x, 0.0, 6.0)),
        "matmul": ("dot_general", lambda x, y, adjoint=False: jnp.matmul(x, jnp.swapaxes(y, -1, -2) if adjoint else y)),
        "matmul2": ("dot_general", jnp.matmul),
        "einsum": ("dot_general", lambda x, y, form: jnp.einsum(form, x, y)),
        "mean": ("reduce_mean", lambda x, axes: jnp.mean(x, tuple(axes), keepdims=True)),
        "sum": ("reduce_sum", lambda x, axes: jnp.sum(x, tuple(axes), keepdims=True)),
        "max": ("reduce_max", lambda x, axes: jnp.max(x, tuple(axes), keepdims=True)),
        "reshape": ("reshape", lambda x, shape: jnp.reshape(x, tuple(shape))),
        "transpose": ("transpose", lambda x, axes: jnp.transpose(x, tuple(axes))),
        "concat": ("concatenate", lambda *x, axis: jnp.concatenate(x, axis)),
        "split": ("split", lambda x, parts, axis: jnp.split(x, parts, axis)),
        "slice": ("slice", lambda x, axis, start, stop: _sliced(x, axis, start, stop)),
        "gather": ("gather", lambda w, i: jnp.take(w, i, axis=0)),
        "where": ("select_n", jnp.where),
        "topk": ("top_k", lambda x, k: lax.top_k(x, k)[0]),
        "pad": ("pad", lambda x, pads: jnp.pad(x, [tuple(p) for p in pads])),
        "conv": ("conv_general_dilated", conv), "depthwise": ("conv_general_dilated", conv),
        "max_pool": ("reduce_window_max", pooled),
        "upsample": ("repeat", lambda x: jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)),
        "stack": ("concatenate", lambda *x, axis: jnp.stack(x, axis)),
    }  # fmt: skip


def torch() -> Dialect:
    """Return the operators of torch by msprobe's names, for networks of tokens."""
    import torch as framework
    from torch.nn import functional as F

    t = framework
    found: Dialect = {
        "add": ("Tensor.__add__", t.add), "sub": ("Tensor.__sub__", t.sub), "mul": ("Tensor.__mul__", t.mul),
        "div": ("Tensor.__truediv__", t.div), "bias": ("Tensor.__add__", t.add), "ge": ("Tensor.__ge__", t.ge),
        "exp": ("Torch.exp", t.exp), "rsqrt": ("Torch.rsqrt", t.rsqrt), "square": ("Torch.square", t.square),
        "sqrt": ("Torch.sqrt", t.sqrt), "erf": ("Torch.erf", t.erf), "tanh": ("Torch.tanh", t.tanh),
        "pow": ("Torch.pow", t.pow),
        "sigmoid": ("Torch.sigmoid", t.sigmoid), "neg": ("Tensor.__neg__", t.neg), "relu": ("Functional.relu", F.relu),
        "gelu": ("Functional.gelu", F.gelu), "silu": ("Functional.silu", F.silu),
        "max": ("Torch.amax", lambda x, axes: t.amax(x, tuple(axes), True)),
        "bmm": ("Torch.bmm", t.bmm), "baddbmm": ("Torch.baddbmm", lambda m, x, y: t.baddbmm(m, x, y)),
        "matmul": ("Torch.matmul", lambda x, y, adjoint=False: t.matmul(x, y.mT if adjoint else y)),
        "matmul2": ("Torch.matmul", t.matmul), "linear": ("Functional.linear", F.linear),
        "mean": ("Tensor.mean", lambda x, axes: t.mean(x, tuple(axes), True)),
        "sum": ("Tensor.sum", lambda x, axes: t.sum(x, tuple(axes), True)),
        "reshape": ("Tensor.reshape", lambda x, shape: x.reshape(tuple(shape))),
        "transpose": ("Tensor.permute", lambda x, axes: x.permute(tuple(axes))),
        "concat": ("Torch.cat", lambda *x, axis: t.cat(x, axis)),
        "stack": ("Torch.stack", lambda *x, axis: t.stack(x, axis)),
        "split": ("Torch.chunk", lambda x, parts, axis: t.chunk(x, parts, axis)),
        "slice": ("Tensor.__getitem__", lambda x, axis, start, stop: _sliced(x, axis, start, stop)),
        "gather": ("Functional.embedding", lambda w, i: F.embedding(i, w)),
        "where": ("Torch.where", t.where), "topk": ("Torch.topk", lambda x, k: t.topk(x, k)[0]),
    }  # fmt: skip
    return found


def _sliced(x: Any, axis: int, start: int, stop: int) -> Any:
    return x[tuple([slice(None)] * (axis % len(x.shape)) + [slice(start, stop)])]
