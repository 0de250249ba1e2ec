"""numpy's formulas of calls against torch in float64: results, gradients, and the node that a record may hold.

Inner names are asked, as a dump has no float64 gradients of every call; the public surface is test_numpy_calls.py.
"""

# ruff: noqa: E501, E743
import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from npucmp import replay  # noqa: E402
from npucmp.model import Call, ReplayVerdict  # noqa: E402
from npucmp.recompute.call_inputs import CallInputs, map_arrays  # noqa: E402
from npucmp.recompute.call_table import formula_of  # noqa: E402
from npucmp.recompute.noisy_ops import Alternatives, Steps  # noqa: E402
from tests.recompute import innocent  # noqa: E402
from tests.recompute import npu_reference as npu_formulas  # noqa: E402

rng = np.random.default_rng(0)
CONSTANT = {"batch_norm": (1, 2), "npu_rotary_mul": (1, 2)}  # arguments without a gradient


def N(*shape):
    return rng.normal(size=shape)


def P(*shape):
    return np.abs(rng.normal(size=shape)) + 0.1


def I(n, *shape):
    return rng.integers(0, n, size=shape)


def cases():
    T = torch
    for n in (
        "relu relu6 silu gelu softplus elu celu selu leaky_relu mish logsigmoid hardsigmoid hardswish hardtanh".split()
    ):
        yield "Functional", n, getattr(F, n), (2 * N(3, 7),), {}
    yield "Functional", "gelu", F.gelu, (N(3, 7),), {"approximate": "tanh"}
    yield "Functional", "softplus", F.softplus, (9 * N(3, 7), 2.0, 5.0), {}
    yield "Functional", "elu", F.elu, (N(3, 7), 0.5), {}
    yield "Functional", "hardtanh", F.hardtanh, (N(3, 7), -0.5, 0.7), {}
    yield "Functional", "threshold", F.threshold, (N(3, 7), 0.1, 20.0), {}
    for n in "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sin cos erf abs neg sign floor ceil trunc round tanh sigmoid".split():
        yield "Torch", n, getattr(T, n), (P(3, 7),), {}
        if n not in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt"):
            yield "Tensor", n, getattr(T.Tensor, n), (N(3, 7),), {}
    for n in "add sub mul div maximum minimum".split():
        yield "Torch", n, getattr(T, n), (N(3, 4, 5), N(4, 1)), {}
    yield "Torch", "add", T.add, (N(3, 4), N(4)), {"alpha": 2.5}
    yield "Torch", "sub", T.sub, (N(3, 4), N(3, 4)), {"alpha": 2.5}
    for n in "add radd sub rsub mul rmul truediv rtruediv".split():
        n = f"__{n}__"
        yield "Tensor", n, getattr(T.Tensor, n), (P(3, 4), 1.5), {}
        yield "Tensor", n, getattr(T.Tensor, n), (P(3, 4), P(2, 3, 4)), {}
    yield "Tensor", "__pow__", T.Tensor.__pow__, (P(3, 4), 3), {}
    yield "Tensor", "pow", T.Tensor.pow, (P(3, 4), P(3, 1)), {}
    yield "Tensor", "__rpow__", T.Tensor.__rpow__, (P(3, 4), 2.0), {}
    yield "Torch", "where", T.where, (N(3, 4) > 0, N(3, 4), N(4)), {}
    yield "Tensor", "where", T.Tensor.where, (N(3, 4), N(3, 4) > 0, N(4)), {}
    yield "Tensor", "masked_fill", T.Tensor.masked_fill, (N(3, 4), N(4) > 0, -5.0), {}
    yield "Torch", "clamp", T.clamp, (N(3, 4), -0.5, 0.5), {}
    yield "Torch", "clamp", T.clamp, (N(3, 4),), {"min": 0.1}
    yield "Torch", "lerp", T.lerp, (N(3, 4), N(3, 4), 0.3), {}
    yield "Torch", "lerp", T.lerp, (N(3, 4), N(4), P(3, 1)), {}
    yield "Torch", "addcmul", T.addcmul, (N(3, 4), N(4), N(3, 1)), {}
    yield "Torch", "addcdiv", T.addcdiv, (N(4), N(3, 4), P(3, 1)), {}
    yield "Torch", "addcmul", T.addcmul, (N(3, 4), N(3, 4), N(3, 4)), {"value": 0.3}
    yield "Torch", "addcdiv", T.addcdiv, (N(3, 4), N(3, 4), P(3, 4)), {"value": 0.3}
    for x in (N(4), N(5, 4), N(2, 5, 4)):
        yield "Functional", "linear", F.linear, (x, N(3, 4), N(3)), {}
        yield "Functional", "linear", F.linear, (x, N(3, 4)), {}
    for a, b in (
        ((4,), (4,)),
        ((3, 4), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (3, 4, 5)),
        ((4,), (2, 4, 5)),
        ((2, 3, 4), (4,)),
    ):
        yield "Torch", "matmul", T.matmul, (N(*a), N(*b)), {}
    yield "Tensor", "__matmul__", T.Tensor.__matmul__, (N(3, 4), N(4, 5)), {}
    yield "Torch", "bmm", T.bmm, (N(2, 3, 4), N(2, 4, 5)), {}
    yield "Torch", "addmm", T.addmm, (N(5), N(3, 4), N(4, 5)), {"beta": 0.5, "alpha": 2.0}
    yield "Torch", "baddbmm", T.baddbmm, (N(2, 3, 5), N(2, 3, 4), N(2, 4, 5)), {}
    yield "Torch", "outer", T.outer, (N(3), N(4)), {}
    for eq, s in (
        ("bhqd,bhkd->bhqk", ((2, 3, 4, 5), (2, 3, 6, 5))),
        ("ij,jk->ik", ((3, 4), (4, 5))),
        ("i,j->ij", ((3,), (4,))),
        ("bij,bij->b", ((2, 3, 4), (2, 3, 4))),
        ("ij,k->i", ((3, 4), (5,))),
    ):
        yield "Torch", "einsum", T.einsum, (eq, *[N(*q) for q in s]), {}
    yield "Functional", "conv1d", F.conv1d, (N(2, 4, 9), N(6, 2, 3), N(6)), {"padding": 1, "stride": 2, "groups": 2}
    yield "Functional", "conv1d", F.conv1d, (N(2, 4, 9), N(6, 4, 3), N(6), 1, "same", 2), {}
    yield "Functional", "conv2d", F.conv2d, (N(2, 4, 9, 8), N(6, 2, 3, 2), N(6), (2, 1), (1, 2), (1, 2), 2), {}
    yield "Functional", "conv2d", F.conv2d, (N(2, 3, 16, 16), N(5, 3, 8, 8), None, 8), {}
    yield "Functional", "conv2d", F.conv2d, (N(3, 9, 8), N(6, 3, 3, 3), N(6)), {"padding": "valid"}
    q, k, v = N(2, 3, 5, 4), N(2, 3, 6, 4), N(2, 3, 6, 7)
    yield "Functional", "scaled_dot_product_attention", F.scaled_dot_product_attention, (q, k, v), {}
    yield (
        "Functional",
        "scaled_dot_product_attention",
        F.scaled_dot_product_attention,
        (q, k, v, N(2, 1, 5, 6) > -1),
        {},
    )
    yield (
        "Functional",
        "scaled_dot_product_attention",
        F.scaled_dot_product_attention,
        (q, N(2, 3, 5, 4), N(2, 3, 5, 4)),
        {"is_causal": True, "scale": 0.3},
    )
    yield (
        "Functional",
        "scaled_dot_product_attention",
        F.scaled_dot_product_attention,
        (N(2, 4, 5, 4), N(2, 2, 5, 4), N(2, 2, 5, 4)),
        {"enable_gqa": True},
    )
    for n in ("max_pool", "avg_pool"):
        yield "Functional", n + "1d", getattr(F, n + "1d"), (N(2, 3, 9), 3, 2, 1), {}
        yield "Functional", n + "2d", getattr(F, n + "2d"), (N(2, 3, 9, 8), (3, 2)), {"stride": (2, 1), "padding": 1}
        yield "Functional", n + "2d", getattr(F, n + "2d"), (N(3, 8, 8), 2), {}
    yield "Functional", "max_pool2d", F.max_pool2d, (N(2, 3, 9, 8), 3, 2), {"ceil_mode": True}
    yield (
        "Functional",
        "avg_pool2d",
        F.avg_pool2d,
        (N(2, 3, 9, 8), 3, 2),
        {"ceil_mode": True, "count_include_pad": False},
    )
    yield "Functional", "avg_pool2d", F.avg_pool2d, (N(2, 3, 9, 8), 3, 2, 1, False, True, 5), {}
    yield "Functional", "adaptive_avg_pool2d", F.adaptive_avg_pool2d, (N(2, 3, 9, 8), (4, 3)), {}
    yield "Functional", "adaptive_avg_pool2d", F.adaptive_avg_pool2d, (N(2, 3, 9, 8), 1), {}
    yield "Functional", "adaptive_avg_pool1d", F.adaptive_avg_pool1d, (N(2, 3, 9), 4), {}
    x = N(2, 6, 4, 5)
    yield "Functional", "layer_norm", F.layer_norm, (x, (4, 5), N(4, 5), N(4, 5), 1e-3), {}
    yield "Functional", "layer_norm", F.layer_norm, (x, (5,)), {}
    yield "Functional", "rms_norm", F.rms_norm, (x, (5,), N(5), 1e-3), {}
    yield "Functional", "rms_norm", F.rms_norm, (x, (5,)), {"eps": 1e-3}
    yield "Functional", "batch_norm", F.batch_norm, (x, N(6), P(6), N(6), N(6), True, 0.1, 1e-3), {}
    yield "Functional", "batch_norm", F.batch_norm, (x, N(6), P(6), N(6), N(6)), {}
    yield "Functional", "batch_norm", F.batch_norm, (N(9, 6), None, None), {"training": True}
    yield "Functional", "group_norm", F.group_norm, (x, 3, N(6), N(6)), {}
    yield "Functional", "softmax", F.softmax, (x, 1), {}
    yield "Functional", "softmax", F.softmax, (x,), {"dim": -1}
    yield "Functional", "log_softmax", F.log_softmax, (x,), {"dim": 1}
    yield "Torch", "logsumexp", T.logsumexp, (x, (1, 2)), {"keepdim": True}
    yield "Torch", "logsumexp", T.logsumexp, (x, 1), {}
    y = I(6, 9)
    y[2] = -100
    for kw in (
        {},
        {"reduction": "sum"},
        {"reduction": "none"},
        {"label_smoothing": 0.1},
        {"label_smoothing": 0.1, "reduction": "none"},
        {"label_smoothing": 0.2, "weight": P(6)},
        {"weight": P(6)},
        {"weight": P(6), "reduction": "none"},
    ):
        yield "Functional", "cross_entropy", F.cross_entropy, (N(9, 6), y), kw
        if "label_smoothing" not in kw:
            yield "Functional", "nll_loss", F.nll_loss, (N(9, 6), y), kw
    yield "Functional", "cross_entropy", F.cross_entropy, (N(2, 6, 3, 3), I(6, 2, 3, 3)), {}
    yield "Functional", "cross_entropy", F.cross_entropy, (N(6), np.array(3)), {}
    yield "Functional", "cross_entropy", F.cross_entropy, (N(9, 6), P(9, 6)), {"label_smoothing": 0.1}
    for n in ("mse_loss", "l1_loss", "smooth_l1_loss"):
        for r in ("mean", "sum", "none"):
            yield "Functional", n, getattr(F, n), (N(3, 4), N(3, 4)), {"reduction": r}
    yield "Functional", "binary_cross_entropy", F.binary_cross_entropy, (rng.random((3, 4)), rng.random((3, 4))), {}
    yield (
        "Functional",
        "binary_cross_entropy_with_logits",
        F.binary_cross_entropy_with_logits,
        (N(3, 4), rng.random((3, 4))),
        {},
    )
    shares = rng.random((3, 4)), rng.random((3, 4)).round()
    for r in ("mean", "sum", "none"):
        yield "Functional", "binary_cross_entropy", F.binary_cross_entropy, shares, {"reduction": r, "weight": P(4)}
        more = {"reduction": r, "weight": P(3, 1), "pos_weight": P(4)}
        logits = "binary_cross_entropy_with_logits"
        yield "Functional", logits, getattr(F, logits), (N(3, 4), shares[1]), more
    for n in ("sum", "mean", "var", "std", "prod", "amax", "amin"):
        f = getattr(T, n)
        yield "Torch", n, f, (P(3, 4, 5),), {}
        yield "Torch", n, f, (P(3, 4, 5), 1), {}
        if n != "prod":
            yield "Torch", n, f, (P(3, 4, 5),), {"dim": (0, 2), "keepdim": True}
    yield "Torch", "var", T.var, (x,), {"dim": 1, "unbiased": False}
    yield "Torch", "var", T.var, (x, 1), {"correction": 0}
    yield "Torch", "norm", T.norm, (x,), {"dim": 1}
    yield "Torch", "norm", T.norm, (x,), {"dim": (0, 2), "keepdim": True}
    yield "Tensor", "norm", T.Tensor.norm, (x,), {}
    hole = N(3, 4)
    hole[0, 1], hole[2, :2] = 0, 0
    yield "Torch", "norm", T.norm, (hole * [[1], [0], [1]],), {"dim": 1}
    yield "Torch", "prod", T.prod, (hole, 1), {}
    yield "Torch", "prod", T.prod, (hole,), {}
    yield "Torch", "prod", T.prod, (hole, 0), {"keepdim": True}
    yield "Torch", "cumsum", T.cumsum, (x, 1), {}
    for n in ("max", "min"):
        f = getattr(T, n)
        yield "Torch", n, f, (x,), {}
        yield "Torch", n, f, (x, 1), {}
        yield "Torch", n, f, (x,), {"dim": 1, "keepdim": True}
        yield "Torch", n, f, (x, N(5)), {}
    for n in ("argmax", "argmin"):
        yield "Torch", n, getattr(T, n), (x,), {}
        yield "Torch", n, getattr(T, n), (x, 1), {"keepdim": True}
    yield "Torch", "topk", T.topk, (x, 3), {"dim": 1}
    yield "Torch", "topk", T.topk, (x, 2, -1, False), {}
    yield "Torch", "sort", T.sort, (x, 1), {"descending": True}
    yield "Torch", "argsort", T.argsort, (x,), {}
    TT = T.Tensor
    yield "Tensor", "reshape", TT.reshape, (x, 12, -1), {}
    yield "Tensor", "view", TT.view, (x, (12, 20)), {}
    yield "Tensor", "permute", TT.permute, (x, 0, 2, -1, 1), {}
    yield "Torch", "permute", T.permute, (x, (0, 2, 3, 1)), {}
    yield "Tensor", "transpose", TT.transpose, (x, 1, -1), {}
    yield "Tensor", "t", TT.t, (N(3, 4),), {}
    yield "Torch", "movedim", T.movedim, (x, 1, 2), {}
    yield "Tensor", "expand", TT.expand, (N(3, 1), 2, -1, 4), {}
    yield "Tensor", "repeat", TT.repeat, (N(3, 1), 2, 3, 4), {}
    yield "Torch", "tile", T.tile, (N(3, 1), (2,)), {}
    yield "Tensor", "repeat_interleave", TT.repeat_interleave, (N(3, 4), 2), {"dim": 1}
    yield "Tensor", "repeat_interleave", TT.repeat_interleave, (N(3, 4), 3), {}
    yield "Torch", "narrow", T.narrow, (x, 1, 2, 3), {}
    yield "Torch", "select", T.select, (x, 1, -2), {}
    yield "Torch", "chunk", T.chunk, (x, 4, 1), {}
    yield "Torch", "split", T.split, (x, 4, 1), {}
    yield "Torch", "split", T.split, (x, (1, 2, 3)), {"dim": 1}
    yield "Torch", "unbind", T.unbind, (x, 1), {}
    yield "Torch", "roll", T.roll, (x, 2, 1), {}
    yield "Torch", "roll", T.roll, (x, 3), {}
    yield "Torch", "flip", T.flip, (x, (1, 2)), {}
    yield "Torch", "tril", T.tril, (x,), {}
    yield "Torch", "triu", T.triu, (x, 1), {}
    yield "Torch", "gather", T.gather, (x, 1, I(6, 2, 3, 4, 5)), {}
    yield "Torch", "gather", T.gather, (x, 2, I(4, 1, 3, 9, 2)), {}
    yield "Torch", "index_select", T.index_select, (x, 1, I(6, 8)), {}
    yield "Functional", "embedding", F.embedding, (I(6, 3, 4), N(6, 5)), {"padding_idx": 2}
    yield "Torch", "cat", T.cat, ((N(2, 3), N(2, 4)), 1), {}
    yield "Torch", "stack", T.stack, ((N(2, 3), N(2, 3)), -1), {}
    for i in (
        (slice(None), 1),
        (Ellipsis, slice(1, None, 2)),
        1,
        (None, slice(None), I(6, 4)),
        (slice(None), I(6, 4), slice(None), I(5, 4)),
        (x > 0),
    ):
        yield "Tensor", "__getitem__", TT.__getitem__, (x, i), {}
    for mode in ("constant", "reflect", "replicate", "circular"):
        yield "Functional", "pad", F.pad, (x, (1, 2, 2, 1)), {"mode": mode}
    yield "Functional", "pad", F.pad, (x, (1, -2), "constant", 3.0), {}
    yield "Functional", "pixel_shuffle", F.pixel_shuffle, (N(2, 8, 3, 4), 2), {}
    yield "Functional", "interpolate", F.interpolate, (N(2, 3, 4, 5),), {"scale_factor": 2}
    yield "Functional", "interpolate", F.interpolate, (N(2, 3, 4, 5), (7, 3)), {}
    yield "Functional", "interpolate", F.interpolate, (N(2, 3, 4), 11, None, "nearest-exact"), {}
    yield "Functional", "one_hot", F.one_hot, (I(5, 7), 5), {}
    yield "Tensor", "index_add", TT.index_add, (x, 1, I(6, 8), N(2, 8, 4, 5)), {"alpha": 0.5}
    yield "Torch", "scatter_add", T.scatter_add, (I(9, *x.shape), 1, I(6, 2, 3, 4, 5), I(9, 2, 4, 4, 5)), {}
    yield "Torch", "scatter_add", T.scatter_add, (x, 1, I(6, 2, 3, 4, 5), N(2, 3, 4, 5)), {}
    yield "Tensor", "scatter_add", TT.scatter_add, (x, -1, I(5, 1, 3, 4, 7), N(1, 3, 4, 7)), {}
    yield "Tensor", "index_fill", TT.index_fill, (x, 1, np.array([1, 4, 1]), np.array(2.0)), {}
    yield "Tensor", "index_fill", TT.index_fill, (x, 1, I(6, 3), 2.0), {}
    yield from of_the_vendor()
    yield "Torch", "all", T.all, (x > -2, 1), {}
    yield "Torch", "any", T.any, (x > 2,), {}
    for n in "eq ne lt le gt ge".split():
        yield "Torch", n, getattr(T, n), (I(3, 4), I(3, 4)), {}
    yield "Torch", "logical_not", T.logical_not, (x > 0,), {}
    yield "Torch", "bitwise_and", T.bitwise_and, (x > 0, x > 1), {}


def of_the_vendor():
    x, turns = N(2, 3, 4, 6), (N(1, 1, 4, 6), N(1, 1, 4, 6))
    yield "NPU", "npu_rms_norm", lambda *some: npu_formulas.npu_rms_norm(*some)[0], (x, N(6), 1e-3), {}
    yield "NPU", "npu_rms_norm", lambda *some: npu_formulas.npu_rms_norm(*some)[0], (x, N(4, 6)), {}
    yield "NPU", "npu_add_rms_norm", npu_formulas.npu_add_rms_norm, (x, N(2, 3, 4, 6), N(6)), {}
    yield "NPU", "npu_swiglu", npu_formulas.npu_swiglu, (x,), {}
    yield "NPU", "npu_swiglu", npu_formulas.npu_swiglu, (x, 2), {}
    yield "NPU", "npu_rotary_mul", npu_formulas.npu_rotary_mul, (x, *turns), {}
    yield "NPU", "npu_rotary_mul", npu_formulas.npu_rotary_mul, (x, *turns, "interleave"), {}
    yield "NPU", "npu_gelu", npu_formulas.npu_gelu, (x,), {"approximate": "tanh"}
    yield "NPU", "npu_fast_gelu", npu_formulas.fast_gelu, (x,), {}
    for triangle in (False, True):
        more = {"scale": 0.3, "fixed_triu_mask": triangle}
        yield "NPU", "npu_scaled_masked_softmax", npu_formulas.npu_scaled_masked_softmax, (x, x > 0.5), more
    mask = np.triu(np.ones((5, 7), bool), 2)
    for layout, q, k in (
        ("BNSD", (2, 4, 5, 6), (2, 2, 7, 6)),
        ("BSND", (2, 5, 4, 6), (2, 7, 2, 6)),
        ("BSH", (2, 5, 24), (2, 7, 12)),
        ("SBH", (5, 2, 24), (7, 2, 12)),
    ):
        for more in ({}, {"atten_mask": mask}, {"sparse_mode": 2}, {"sparse_mode": 3, "scale": 0.3}):
            function = lambda *some, **more: npu_formulas.npu_fusion_attention(*some, **more)[0]  # noqa: E731
            yield "NPU", "npu_fusion_attention", function, (N(*q), N(*k), N(*k), 4, layout), more


CASES = [*cases()]


def close(a, b, digits=1e-10):
    return a.shape == b.shape and np.allclose(a, b, rtol=digits, atol=digits)


def called(prefix, name, function, args, kwargs):
    """What torch makes of it: leaves by place, results."""
    leaves = {}

    def lifted(one):
        found = torch.from_numpy(np.array(one))
        if found.is_floating_point():
            leaves[len(leaves)] = found.requires_grad_()
        return found

    again = map_arrays([list(args), dict(kwargs)], lifted)
    for place in CONSTANT.get(name, ()):
        if again[0][place] is not None:
            again[0][place].requires_grad_(False)
    for key in ("weight", "pos_weight") if name.endswith(("entropy", "logits", "nll_loss")) else ():
        if key in again[1]:
            again[1][key].requires_grad_(False)
    made = function(*again[0], **again[1])
    results = [*made] if isinstance(made, (list, tuple)) else [made]
    return [one for one in leaves.values() if one.requires_grad], results


def inputs(args, kwargs, results, gradients=()):
    recorded = {at: one.detach().numpy() for at, one in enumerate(results)}
    shapes = {at: one.shape for at, one in recorded.items()}
    return CallInputs(tuple(args), kwargs, shapes, recorded, tuple(gradients))


def steps(seed=None):
    return Steps(2.0**-53, 2.0**-53, 1 << 33, seed)


def test_fused_attention_has_the_maximum_and_the_sum_of_its_scores():
    args = N(2, 4, 5, 6), N(2, 2, 7, 6), N(2, 2, 7, 6), 4, "BNSD"
    more = {"sparse_mode": 2, "scale": 0.3}
    wanted = npu_formulas.npu_fusion_attention(*(torch.from_numpy(one) for one in args[:3]), *args[3:], **more)
    made = formula_of(Call("NPU", "npu_fusion_attention")).forward(steps(), CallInputs(args, more), *args, **more)
    assert len(made) == 3 and all(close(np.asarray(one), other.numpy()) for one, other in zip(made, wanted))


@pytest.mark.few(107)
@pytest.mark.parametrize(
    "prefix, name, function, args, kwargs", CASES, ids=[f"{at}-{one[1]}" for at, one in enumerate(CASES)]
)
def test_results_and_gradients_are_those_of_torch(prefix, name, function, args, kwargs):
    formula = formula_of(Call(prefix, name))
    leaves, results = called(prefix, name, function, args, kwargs)
    made = formula.forward(steps(), inputs(args, kwargs, results), *args, **kwargs)
    made = made.among[0] if isinstance(made, Alternatives) else made
    made = [*made] if isinstance(made, (list, tuple)) else [made]
    made = made[: len(results)] if prefix == "NPU" else made
    assert len(made) == len(results)
    assert all(close(np.asarray(one), other.detach().numpy()) for one, other in zip(made, results))
    pairs = [(one, torch.from_numpy(N(*one.shape))) for one in results if one.requires_grad]
    if not pairs or formula.backward is None:
        return
    node = []
    pairs[0][0].grad_fn.register_hook(lambda gradients, _: node.extend(gradients))
    found = torch.autograd.grad([y for y, _ in pairs], leaves, [dy for _, dy in pairs], allow_unused=True)
    arrived = iter([dy.numpy() for _, dy in pairs])
    g = inputs(args, kwargs, results, [next(arrived) if one.requires_grad else None for one in results])
    nodes = formula.backward(steps(), g, *args, **kwargs)
    noisy = formula.backward(steps(3), g, *args, **kwargs)
    assert [len(one) for one in noisy] == [len(one) for one in nodes]
    own = [one for one in nodes[0] if one is not None]
    wanted = [one.numpy() for one in found if one is not None]
    digits = 1e-7 if name == "hardsigmoid" else 1e-10  # torch has a sixth in float32
    assert len(own) <= len(wanted) and all(close(a, b, digits) for a, b in zip(own, wanted))
    assert len(own) == len(wanted) or name.endswith(("entropy", "logits"))  # a gradient of targets is nobody's
    if formula.is_closed:
        recorded = [None if one is None else one.numpy() for one in node]
        every = [*nodes, *([one for one in some if one is not None] for some in nodes)]
        same_shapes = [some for some in every if _fits(some, recorded, lambda a, b: a.shape == b.shape)]
        right = [some for some in same_shapes if _fits(some, recorded, lambda a, b: close(a, b, digits))]
        assert right or not same_shapes  # what torch's last node hands on is among them, if its shapes are


def _fits(node, recorded, alike):
    """Whether each recorded gradient is the one in its place, as it is or transposed."""
    for at, one in enumerate(recorded):
        if one is None:
            continue
        own = node[at] if at < len(node) else None
        if own is None or not any(alike(form, one) for form in (own, own.swapaxes(-1, -2) if own.ndim > 1 else own)):
            return False
    return True


DRAWN = frozenset(
    "lerp addcmul addcdiv outer prod norm scatter_add index_fill binary_cross_entropy "
    "binary_cross_entropy_with_logits".split()
)


@pytest.fixture
def drawn(monkeypatch):
    """Calls of DRAWN that torch made in float32 and 16 bits."""
    calls = {key: some for key, some in innocent.CALLS.items() if key.rpartition(".")[2] in DRAWN}
    monkeypatch.setattr(innocent, "CALLS", calls)
    return innocent.records(5, 60)


def verdicts(records, folder):
    found = replay(innocent.write(records, folder), jobs=1, engine="numpy")
    phases = {one.order: one.phase for one in found.replays[0].run.operators}
    rows = [row for row in found.rows if row.status == "replayed"]
    return [(phases[row.order], row.verdict) for row in rows]


def test_drawn_calls_of_torch_are_innocent(drawn, tmp_path):
    found = verdicts(drawn, tmp_path)
    assert len(found) > 60 and {verdict for _, verdict in found} == {ReplayVerdict.CLEAN}


def test_drawn_gradients_that_are_too_large_are_guilty(drawn, tmp_path):
    some = [one._replace(gradients=[None if grad is None else grad * 1.1 for grad in one.gradients])
            for one in drawn if any(grad is not None and bool(grad.any()) for grad in one.gradients)]  # fmt: skip
    found = [verdict for phase, verdict in verdicts(some, tmp_path) if phase == "backward"]
    assert len(found) > 20 and found.count(ReplayVerdict.GUILTY) >= 0.9 * len(found)  # others may be zero
