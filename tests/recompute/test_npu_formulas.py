"""Formulas of the vendor's own operators, against numpy in float64."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from npucmp.recompute.arguments import NotInTable  # noqa: E402
from tests.recompute import npu_reference as npu_formulas  # noqa: E402 where torch is there

RNG = np.random.default_rng(3)
B, S, N, D = 2, 6, 4, 8
Q, K, V = (RNG.normal(size=(B, N, S, D)) for _ in range(3))


def attention(q, k, v, scale, mask=None):
    """By batch and head, written out."""
    out, largest, total = np.zeros(q.shape), np.zeros((B, N, S, 8)), np.zeros((B, N, S, 8))
    for b in range(B):
        for n in range(N):
            scores = q[b, n] @ k[b, n].T * scale
            if mask is not None:
                scores = np.where(mask, -np.inf, scores)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            largest[b, n], total[b, n] = scores.max(-1, keepdims=True), weights.sum(-1, keepdims=True)
            out[b, n] = weights / weights.sum(-1, keepdims=True) @ v[b, n]
    return out, largest, total


def laid(x, layout):
    x = {"BNSD": x, "BSND": x.transpose(0, 2, 1, 3)}.get(layout, x.transpose(0, 2, 1, 3).reshape(B, S, -1))
    return torch.from_numpy(np.ascontiguousarray(x.transpose(1, 0, 2) if layout == "SBH" else x))


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
@pytest.mark.parametrize("sparse_mode", [0, 2])
def test_fusion_attention(layout, sparse_mode):
    mask = np.triu(np.ones((S, S), bool), 1) if sparse_mode else None
    inputs = (laid(one, layout) for one in (Q, K, V))
    found = npu_formulas.npu_fusion_attention(*inputs, N, layout, scale=0.3, sparse_mode=sparse_mode)
    wanted = attention(Q, K, V, 0.3, mask)
    assert torch.allclose(found[0], laid(wanted[0], layout), rtol=1e-13, atol=1e-13)
    for one, other in zip(found[1:], wanted[1:]):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-13)


def test_grouped_heads():
    """Two heads of keys for four of queries."""
    k, v = K[:, :2], V[:, :2]
    found = npu_formulas.npu_fusion_attention(*map(torch.from_numpy, (Q, k, v)), N, "BNSD", scale=1.0)[0]
    wanted = attention(Q, np.repeat(k, 2, 1), np.repeat(v, 2, 1), 1.0)[0]
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-13)


@pytest.mark.parametrize("more", [{"keep_prob": 0.9}, {"sparse_mode": 4}, {"pse": torch.zeros(1)}])
def test_what_has_no_formula(more):
    with pytest.raises(NotInTable):
        npu_formulas.npu_fusion_attention(*map(torch.from_numpy, (Q, K, V)), N, "BNSD", **more)


def test_norms_and_activations():
    x, gamma = Q[0, 0], RNG.normal(size=D)
    y, rstd = npu_formulas.npu_rms_norm(torch.from_numpy(x), torch.from_numpy(gamma), 1e-5)
    wanted = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(rstd.numpy(), wanted, rtol=1e-13)
    np.testing.assert_allclose(y.numpy(), x * wanted * gamma, rtol=1e-13)
    added = npu_formulas.npu_add_rms_norm(*map(torch.from_numpy, (x, x, gamma)), 1e-5)
    np.testing.assert_allclose(added[2].numpy(), 2 * x)
    a, b = x[:, :4], x[:, 4:]
    np.testing.assert_allclose(
        npu_formulas.npu_swiglu(torch.from_numpy(x)).numpy(), a / (1 + np.exp(-a)) * b, rtol=1e-13
    )
    np.testing.assert_allclose(
        npu_formulas.fast_gelu(torch.from_numpy(x)).numpy(), x / (1 + np.exp(-1.702 * x)), rtol=1e-13
    )


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_rotary(mode):
    x, cos, sin = Q[0, 0], RNG.normal(size=D), RNG.normal(size=D)
    turned = np.empty_like(x)
    if mode == "half":
        turned[:, :4], turned[:, 4:] = -x[:, 4:], x[:, :4]
    else:
        turned[:, ::2], turned[:, 1::2] = -x[:, 1::2], x[:, ::2]
    found = npu_formulas.npu_rotary_mul(*map(torch.from_numpy, (x, cos, sin)), mode)
    np.testing.assert_allclose(found.numpy(), x * cos + turned * sin, rtol=1e-13)


def test_masked_softmax():
    x = Q[0, 0]
    found = npu_formulas.npu_scaled_masked_softmax(torch.from_numpy(x), torch.zeros(S, D, dtype=torch.bool), 0.5)
    weights = np.exp(x * 0.5)
    np.testing.assert_allclose(found.numpy(), weights / weights.sum(-1, keepdims=True), rtol=1e-13)
