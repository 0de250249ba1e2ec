"""The networks that are dumped: small, randomly initialised, forward to a loss. A new one is one row of NETWORKS."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import torch
import torch.nn.functional as F
import transformers
from torch import nn


class Network(NamedTuple):
    """build(attention) returns the model, batch(step) what it is called with; it returns something with a `loss`."""

    build: Callable[[str], nn.Module]
    batch: Callable[[int], Any]
    attentions: tuple[str, ...] = ("eager", "sdpa")  # implementations of attention that it has


def _random(step: int) -> torch.Generator:
    return torch.Generator().manual_seed(7 + step)


def _tokens(step: int, shape: tuple[int, int] = (2, 8)) -> torch.Tensor:
    return torch.randint(1, 64, shape, generator=_random(step))


def _text(step: int) -> Any:
    ids = _tokens(step)
    return {"input_ids": ids, "labels": ids}


def _labelled_text(step: int) -> Any:
    ids = _tokens(step)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[:, 0] % 2}


def _translation(step: int) -> Any:
    return {"input_ids": _tokens(step), "labels": _tokens(step + 100, (2, 6))}


def _pictures(step: int) -> Any:
    random = _random(step)
    pixels = torch.randn(2, 3, 16, 16, generator=random)
    return {"pixel_values": pixels, "labels": torch.randint(0, 5, (2,), generator=random)}


def _noisy_pictures(step: int) -> Any:
    random = _random(step)
    pixels = torch.randn(2, 3, 16, 16, generator=random)
    return {"pixels": pixels, "noise": torch.randn(2, 3, 16, 16, generator=random), "time": torch.tensor([3.0, 40.0])}


_DECODER = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
    "use_cache": False,
}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_ENCODER = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64, **_NO_DROPOUT}


def bert(attention: str) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=64, max_position_embeddings=16, attn_implementation=attention, **_ENCODER
    )
    return transformers.BertForSequenceClassification(config)


def vit(attention: str) -> nn.Module:
    config = transformers.ViTConfig(
        image_size=16, patch_size=8, num_labels=5, attn_implementation=attention, **_ENCODER
    )
    return transformers.ViTForImageClassification(config)


def convnext(attention: str) -> nn.Module:
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 16],
        depths=[2, 2],
        num_stages=2,
        image_size=16,
        patch_size=4,
        num_labels=5,
        drop_path_rate=0.0,
        layer_scale_init_value=1.0,
    )
    return transformers.ConvNextForImageClassification(config)


def llama(attention: str) -> nn.Module:
    config = transformers.LlamaConfig(num_hidden_layers=3, attn_implementation=attention, **_DECODER)
    return transformers.LlamaForCausalLM(config)


def qwen3(attention: str) -> nn.Module:
    config = transformers.Qwen3Config(num_hidden_layers=2, head_dim=16, attn_implementation=attention, **_DECODER)
    return transformers.Qwen3ForCausalLM(config)


def mixtral(attention: str) -> nn.Module:
    """Mixture of experts: which rows an expert computes depends on the values."""
    config = transformers.MixtralConfig(
        num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2, attn_implementation=attention, **_DECODER
    )
    config._experts_implementation = "eager"  # one expert after the other, each product an operator
    return transformers.MixtralForCausalLM(config)


def gpt2(attention: str) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=64,
        n_embd=32,
        n_layer=3,
        n_head=2,
        n_positions=16,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        attn_implementation=attention,
    )
    return transformers.GPT2LMHeadModel(config)


def t5(attention: str) -> nn.Module:
    """Encoder and decoder with cross attention."""
    config = transformers.T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=16,
        d_ff=48,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        use_cache=False,
        decoder_start_token_id=0,
        attn_implementation=attention,
    )
    return transformers.T5ForConditionalGeneration(config)


class Loss(NamedTuple):
    """What a model of this file returns: the part of a transformers result that is used."""

    loss: torch.Tensor


class Residual(nn.Module):
    """Two convolutions with GroupNorm, and the time added between them."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, before), nn.GroupNorm(4, after)
        self.conv1, self.conv2 = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(16, after)
        self.skip = nn.Conv2d(before, after, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Attention(nn.Module):
    """Self attention of the pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).flatten(2).chunk(3, dim=1)
        scores = torch.matmul(q.transpose(1, 2), k) * q.shape[1] ** -0.5
        mixed = torch.matmul(v, F.softmax(scores, dim=-1).transpose(1, 2))
        return x + self.out(mixed.reshape(x.shape))


class UNet(nn.Module):
    """A denoiser as diffusion models have it: down, attention in the middle, up with the skipped tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.time1, self.time2 = nn.Linear(8, 16), nn.Linear(16, 16)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.down1, self.down2 = Residual(8, 8), Residual(8, 16)
        self.middle, self.attention = Residual(16, 16), Attention(16)
        self.up2, self.up1 = Residual(32, 8), Residual(16, 8)
        self.norm, self.last = nn.GroupNorm(4, 8), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, pixels: torch.Tensor, noise: torch.Tensor, time: torch.Tensor) -> Loss:
        rates = torch.exp(torch.arange(4, dtype=time.dtype) * -2.0)
        angles = time[:, None] * rates
        embedded = self.time2(F.silu(self.time1(torch.cat([torch.sin(angles), torch.cos(angles)], dim=1))))
        wide = self.down1(self.first(pixels + noise), embedded)
        deep = self.down2(F.avg_pool2d(wide, 2), embedded)
        deep_out = self.attention(self.middle(deep, embedded))
        up = self.up2(torch.cat([deep_out, deep], dim=1), embedded)
        up = self.up1(torch.cat([F.interpolate(up, scale_factor=2.0, mode="nearest"), wide], dim=1), embedded)
        return Loss(F.mse_loss(self.last(F.silu(self.norm(up))), noise))


def unet(attention: str) -> nn.Module:
    return UNet()


NETWORKS = {
    "bert": Network(bert, _labelled_text),
    "llama": Network(llama, _text),
    "vit": Network(vit, _pictures),
    "convnext": Network(convnext, _pictures, ("eager",)),
    "gpt2": Network(gpt2, _text),
    "mixtral": Network(mixtral, _text),
    "qwen3": Network(qwen3, _text),
    "t5": Network(t5, _translation),
    "unet": Network(unet, _noisy_pictures, ("eager",)),
}
