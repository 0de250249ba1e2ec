"""Which pairs are made: a new one is one row."""

from __future__ import annotations

from typing import Iterator, NamedTuple

import torch
from plants import Fault
from runs import Recording, Run, Setting

BF16, FP16 = torch.bfloat16, torch.float16

# One fault each, both runs in float32 with the same kernels: what differs, differs because of it.
FAULTS = [
    Fault("bert", "narrow", "Functional.softmax.1.forward", amount=BF16),
    Fault("bert", "narrow", "Functional.linear.7.forward", amount=BF16),
    Fault("bert", "scaled", "Torch.matmul.3.forward", amount=1.003),
    Fault("bert", "lost tile", "Functional.linear.10.forward"),
    Fault("bert", "noise", "Functional.layer_norm.2.forward", amount=1e-4),
    Fault("bert", "nan", "Functional.linear.8.forward"),
    Fault("bert", "epsilon", "Functional.layer_norm.2.forward", amount=1e-3),
    Fault("bert", "dropped bias", "Functional.linear.4.forward"),
    Fault("bert", "uncaptured gelu", "bert.encoder.layer.1.intermediate.intermediate_act_fn",
          "Functional.linear.11.forward"),
    Fault("bert", "weight", "bert.encoder.layer.1.attention.self.query.weight", "Functional.linear.6.forward", 1.01),
    Fault("bert", "token", "input_ids", "Functional.embedding.0.forward", 5),
    Fault("bert", "overwritten", "Functional.layer_norm.2.forward", "Functional.linear.6.forward"),
    Fault("bert", "gradient", "Functional.linear.9.forward", amount=1.05),
    Fault("bert", "incoming gradient", "Functional.layer_norm.3.forward", amount=1.05),
    Fault("llama", "scaled", "Functional.silu.1.forward", amount=1.003),
    Fault("llama", "narrow", "Torch.matmul.2.forward", amount=FP16),
    Fault("llama", "narrow", "Functional.softmax.2.forward", amount=BF16),
    Fault("llama", "lost tile", "Functional.linear.11.forward"),
    Fault("llama", "noise", "Functional.silu.1.forward", amount=1e-6),
    Fault("llama", "nan", "Tensor.__mul__.22.forward"),
    Fault("llama", "swapped columns", "Functional.linear.8.forward"),
    Fault("llama", "attribute", "model.layers.1.post_attention_layernorm.variance_epsilon",
          "Tensor.__add__.15.forward", 1e-3),
    Fault("llama", "weight", "model.layers.1.mlp.up_proj.weight", "Functional.linear.12.forward", 1.01),
    Fault("llama", "weight element", "model.layers.1.self_attn.o_proj.weight", "Functional.linear.10.forward", 1.0),
    Fault("llama", "overwritten", "Functional.linear.12.forward", "Tensor.__mul__.22.forward"),
    Fault("llama", "gradient", "Torch.matmul.3.forward", amount=1.05),
    Fault("llama", "narrow gradient", "Functional.linear.13.forward", amount=BF16),
    Fault("llama", "incoming gradient", "Functional.linear.10.forward", amount=1.05),
    Fault("vit", "narrow", "Functional.softmax.1.forward", amount=BF16),
    Fault("vit", "epsilon", "Functional.layer_norm.3.forward", amount=1e-3),
    Fault("vit", "lost tile", "Functional.linear.9.forward"),
    Fault("vit", "input", "pixel_values", "Functional.conv2d.0.forward", 1.01),
    Fault("vit", "scaled", "Functional.linear.17.forward", amount=0.997),
    Fault("vit", "noise", "Torch.matmul.2.forward", amount=1e-6),
    Fault("convnext", "epsilon", "Functional.layer_norm.3.forward", amount=1e-3),
    Fault("convnext", "scaled", "Functional.conv2d.2.forward", amount=1.003),
    Fault("convnext", "lost tile", "Functional.conv2d.3.forward"),
    Fault("convnext", "noise", "Functional.conv2d.4.forward", amount=1e-4),
    Fault("convnext", "nan", "Functional.linear.4.forward"),
    Fault("convnext", "narrow", "Functional.conv2d.5.forward", amount=BF16),
    Fault("convnext", "gradient", "Functional.conv2d.2.forward", amount=1.05),
    Fault("gpt2", "narrow", "Torch.addmm.6.forward", amount=BF16),
    Fault("gpt2", "scaled", "Functional.softmax.1.forward", amount=1.003),
    Fault("gpt2", "one element", "Torch.addmm.4.forward", amount=0.5),
    Fault("gpt2", "noise", "Torch.tanh.1.forward", amount=1e-6),
    Fault("gpt2", "weight", "transformer.h.1.mlp.c_proj.weight", "Torch.addmm.7.forward", 1.01),
    Fault("gpt2", "overwritten", "Tensor.__add__.9.forward", "Functional.layer_norm.3.forward"),
    Fault("gpt2", "incoming gradient", "Torch.addmm.5.forward", amount=1.05),
    Fault("mixtral", "scaled", "Functional.softmax.1.forward", amount=1.003),
    Fault("mixtral", "narrow", "Functional.linear.4.forward", amount=BF16),
    Fault("mixtral", "lost tile", "Functional.linear.6.forward"),
    Fault("mixtral", "noise", "Functional.silu.4.forward", amount=1e-4),
    Fault("mixtral", "swapped columns", "Functional.softmax.3.forward"),
    Fault("mixtral", "scaled", "Tensor.index_add_.1.forward", amount=1.003),
    Fault("mixtral", "nan", "Functional.linear.19.forward"),
    Fault("mixtral", "weight", "model.layers.1.mlp.experts.down_proj", "Functional.linear.19.forward", 1.01),
    Fault("mixtral", "gradient", "Functional.linear.8.forward", amount=1.05),
    Fault("mixtral", "incoming gradient", "Functional.linear.6.forward", amount=1.05),
    Fault("qwen3", "attribute", "model.layers.1.self_attn.q_norm.variance_epsilon", "Tensor.__add__.13.forward", 1e-3),
    Fault("qwen3", "scaled", "Torch.rsqrt.5.forward", amount=1.003),
    Fault("qwen3", "narrow", "Functional.softmax.1.forward", amount=BF16),
    Fault("qwen3", "narrow", "Functional.linear.11.forward", amount=FP16),
    Fault("qwen3", "lost tile", "Torch.matmul.3.forward"),
    Fault("qwen3", "weight", "model.layers.1.self_attn.k_norm.weight", "Tensor.__mul__.22.forward", 1.01),
    Fault("qwen3", "noise", "Tensor.__mul__.16.forward", amount=1e-4),
    Fault("qwen3", "gradient", "Functional.silu.1.forward", amount=1.05),
    Fault("t5", "scaled", "Functional.softmax.3.forward", amount=1.003),
    Fault("t5", "narrow", "Functional.softmax.4.forward", amount=BF16),
    Fault("t5", "lost tile", "Functional.linear.19.forward"),
    Fault("t5", "scaled", "Functional.embedding.1.forward", amount=1.003),
    Fault("t5", "noise", "Functional.linear.13.forward", amount=1e-4),
    Fault("t5", "nan", "Torch.matmul.6.forward"),
    Fault("t5", "weight", "decoder.block.1.layer.1.EncDecAttention.k.weight", "Functional.linear.30.forward", 1.01),
    Fault("t5", "overwritten", "Tensor.__mul__.17.forward", "Functional.dropout.9.forward"),
    Fault("t5", "incoming gradient", "Functional.linear.20.forward", amount=1.05),
    Fault("t5", "gradient", "Functional.linear.21.forward", amount=1.05),
    Fault("unet", "epsilon", "Functional.group_norm.4.forward", amount=1e-2),
    Fault("unet", "narrow", "Functional.softmax.0.forward", amount=BF16),
    Fault("unet", "lost tile", "Functional.conv2d.8.forward"),
    Fault("unet", "scaled", "Functional.interpolate.0.forward", amount=1.003),
    Fault("unet", "noise", "Functional.group_norm.5.forward", amount=1e-6),
    Fault("unet", "nan", "Functional.conv2d.5.forward"),
    Fault("unet", "narrow", "Functional.conv2d.13.forward", amount=FP16),
    Fault("unet", "weight", "middle.conv1.weight", "Functional.conv2d.7.forward", 1.01),
    Fault("unet", "overwritten", "Functional.silu.9.forward", "Functional.conv2d.9.forward"),
    Fault("unet", "gradient", "Functional.group_norm.4.forward", amount=1.05),
    Fault("unet", "incoming gradient", "Functional.conv2d.5.forward", amount=1.05),
]  # fmt: skip

FLOAT32, PLAIN = Setting(), Setting(kernels="plain")
AUTOCAST, PLAIN_AUTOCAST = Setting("bfloat16"), Setting("bfloat16", kernels="plain")

# The same on top of noise: fault, setting of the target, setting of the golden.
NOISY_FAULTS = [
    (Fault("bert", "scaled", "Torch.matmul.3.forward", amount=1.003), PLAIN, FLOAT32),
    (Fault("bert", "scaled", "Functional.linear.8.forward", amount=1.05), AUTOCAST, FLOAT32),
    (Fault("bert", "lost tile", "Functional.linear.10.forward"), PLAIN_AUTOCAST, AUTOCAST),
    (Fault("llama", "noise", "Functional.silu.1.forward", amount=1e-4), PLAIN, FLOAT32),
    (Fault("llama", "lost tile", "Functional.linear.11.forward"), AUTOCAST, FLOAT32),
    (Fault("llama", "weight", "model.layers.1.mlp.up_proj.weight",
           "Functional.linear.12.forward", 1.1), AUTOCAST, AUTOCAST),
    (Fault("vit", "narrow", "Functional.softmax.1.forward", amount=BF16), PLAIN, FLOAT32),
    (Fault("vit", "swapped columns", "Functional.linear.8.forward"), AUTOCAST, FLOAT32),
    (Fault("convnext", "epsilon", "Functional.layer_norm.3.forward", amount=1e-3), PLAIN, FLOAT32),
    (Fault("convnext", "nan", "Functional.linear.4.forward"), AUTOCAST, FLOAT32),
    (Fault("gpt2", "overwritten", "Tensor.__add__.9.forward", "Functional.layer_norm.3.forward"), PLAIN, FLOAT32),
    (Fault("gpt2", "scaled", "Torch.addmm.6.forward", amount=1.1), AUTOCAST, FLOAT32),
    (Fault("mixtral", "lost tile", "Functional.linear.6.forward"), PLAIN, FLOAT32),
    (Fault("mixtral", "scaled", "Functional.linear.6.forward", amount=1.1), AUTOCAST, FLOAT32),
    (Fault("mixtral", "narrow", "Functional.linear.4.forward", amount=BF16), PLAIN, FLOAT32),
    (Fault("qwen3", "gradient", "Functional.linear.11.forward", amount=1.05), PLAIN, FLOAT32),
    (Fault("qwen3", "scaled", "Functional.linear.8.forward", amount=1.05), PLAIN_AUTOCAST, AUTOCAST),
    (Fault("t5", "scaled", "Functional.linear.20.forward", amount=1.003), PLAIN, FLOAT32),
    (Fault("t5", "lost tile", "Functional.linear.19.forward"), AUTOCAST, FLOAT32),
    (Fault("t5", "gradient", "Functional.linear.21.forward", amount=1.25), PLAIN_AUTOCAST, AUTOCAST),
    (Fault("unet", "epsilon", "Functional.group_norm.4.forward", amount=1e-2), PLAIN, FLOAT32),
    (Fault("unet", "scaled", "Functional.conv2d.8.forward", amount=1.05), AUTOCAST, FLOAT32),
    (Fault("unet", "narrow", "Functional.conv2d.8.forward", amount=BF16), FLOAT32, Setting("float64")),
]  # fmt: skip

RECOMPUTED, REENTRANT = Setting(activations="recomputed"), Setting(activations="recomputed reentrant")
PLAIN_RECOMPUTED = Setting(kernels="plain", activations="recomputed")
PLAIN_REENTRANT = Setting(kernels="plain", activations="recomputed reentrant")
AUTOCAST_RECOMPUTED = Setting("bfloat16", activations="recomputed")
AUTOCAST_REENTRANT = Setting("bfloat16", activations="recomputed reentrant")
PLAIN_AUTOCAST_REENTRANT = Setting("bfloat16", kernels="plain", activations="recomputed reentrant")

# Of networks whose forward runs again on the way back: there a fault is active where it is named, once.
RECOMPUTED_FAULTS = [
    (Fault("bert", "scaled", "Functional.linear.8.forward", amount=1.003), REENTRANT, FLOAT32),
    (Fault("bert", "gradient", "Functional.linear.9.forward", amount=1.05), RECOMPUTED, FLOAT32),
    (Fault("bert", "gradient", "Functional.linear.29.forward", amount=1.05), REENTRANT, FLOAT32),
    (Fault("bert", "scaled", "Functional.linear.28.forward", amount=1.003), REENTRANT, REENTRANT),
    (Fault("llama", "lost tile", "Functional.linear.11.forward"), RECOMPUTED, FLOAT32),
    (Fault("llama", "lost tile", "Functional.linear.11.forward"), AUTOCAST_REENTRANT, FLOAT32),
    (Fault("llama", "gradient", "Torch.matmul.3.forward", amount=1.05), FLOAT32, REENTRANT),
    (Fault("llama", "lost tile", "Functional.linear.26.forward"), PLAIN_REENTRANT, REENTRANT),
    (Fault("gpt2", "narrow", "Torch.addmm.6.forward", amount=BF16), FLOAT32, REENTRANT),
    (Fault("gpt2", "incoming gradient", "Torch.addmm.5.forward", amount=1.05), PLAIN, RECOMPUTED),
    (Fault("qwen3", "weight", "model.layers.1.self_attn.k_norm.weight",
           "Tensor.__mul__.22.forward", 1.01), RECOMPUTED, RECOMPUTED),
    (Fault("qwen3", "attribute", "model.layers.1.self_attn.q_norm.variance_epsilon",
           "Tensor.__add__.13.forward", 1e-3), REENTRANT, FLOAT32),
    (Fault("t5", "noise", "Functional.linear.13.forward", amount=1e-4), PLAIN_REENTRANT, FLOAT32),
    (Fault("mixtral", "nan", "Functional.linear.19.forward"), REENTRANT, REENTRANT),
]  # fmt: skip

MIX, STATISTICS, MD5 = Recording("mix"), Recording(task="statistics"), Recording(task="md5")
MIX_STATISTICS = Recording("mix", "statistics")
INPUTS, OUTPUTS = Recording(part="input"), Recording(part="output")
FORWARD, BACKWARD = Recording(part="forward"), Recording(part="backward")

# Other recordings: fault, what is recorded.
RECORDED_FAULTS = [
    (Fault("bert", "narrow", "Functional.softmax.1.forward", amount=BF16), MIX),
    (Fault("bert", "uncaptured gelu", "bert.encoder.layer.1.intermediate.intermediate_act_fn",
           "Module.bert.encoder.layer.1.intermediate.intermediate_act_fn.GELUActivation.forward.0"), MIX),
    (Fault("bert", "narrow", "Functional.softmax.1.forward", amount=BF16), STATISTICS),
    (Fault("bert", "noise", "Functional.layer_norm.2.forward", amount=1e-4), MD5),
    (Fault("bert", "weight", "bert.encoder.layer.1.attention.self.query.weight",
           "Functional.linear.6.forward", 1.01), MD5),
    (Fault("llama", "scaled", "Functional.silu.1.forward", amount=1.003), STATISTICS),
    (Fault("llama", "weight", "model.layers.1.mlp.up_proj.weight", "Functional.linear.12.forward", 1.01), MIX),
    (Fault("mixtral", "lost tile", "Functional.linear.6.forward"), MIX),
    (Fault("mixtral", "lost tile", "Functional.linear.6.forward"), MIX_STATISTICS),
    (Fault("mixtral", "nan", "Functional.linear.19.forward"), MD5),
    (Fault("qwen3", "lost tile", "Torch.matmul.3.forward"), STATISTICS),
    (Fault("t5", "scaled", "Functional.softmax.3.forward", amount=1.003), MIX),
    (Fault("t5", "lost tile", "Functional.linear.19.forward"), STATISTICS),
    (Fault("unet", "epsilon", "Functional.group_norm.4.forward", amount=1e-2), MIX),
    (Fault("unet", "overwritten", "Functional.silu.9.forward", "Functional.conv2d.9.forward"), MIX),
    (Fault("unet", "nan", "Functional.conv2d.5.forward"), STATISTICS),
    (Fault("unet", "gradient", "Functional.group_norm.4.forward", amount=1.05), MD5),
    (Fault("bert", "scaled", "Torch.matmul.3.forward", "Functional.linear.9.forward", 1.003), INPUTS),
    (Fault("llama", "lost tile", "Functional.linear.11.forward", "Functional.silu.1.forward"), INPUTS),
    (Fault("bert", "scaled", "Torch.matmul.3.forward", amount=1.003), OUTPUTS),
    (Fault("unet", "lost tile", "Functional.conv2d.8.forward"), OUTPUTS),
    (Fault("llama", "narrow", "Torch.matmul.2.forward", amount=FP16), FORWARD),
    (Fault("unet", "weight", "middle.conv1.weight", "Functional.conv2d.7.forward", 1.01), FORWARD),
    (Fault("bert", "gradient", "Functional.linear.9.forward", amount=1.05), BACKWARD),
    (Fault("unet", "gradient", "Functional.conv2d.8.forward", amount=1.05), BACKWARD),
    (Fault("llama", "incoming gradient", "Functional.linear.10.forward", amount=1.05), BACKWARD),
]  # fmt: skip

TRAINING = Recording(steps=3)
TRAINING_STATISTICS = Recording("mix", "statistics", 3)

# Training for three steps. A fault of the optimizer shows in the step behind it, at the first reader of a parameter.
TRAINING_FAULTS = [
    (Fault("bert", "scaled", "Functional.linear.10.forward", amount=1.003, steps=(1,)), TRAINING),
    (Fault("bert", "decay twice", "", "Functional.embedding.0.forward"), TRAINING),
    (Fault("bert", "forgotten parameter", "", "Functional.linear.6.forward", 21), TRAINING),
    (Fault("llama", "lost tile", "Functional.linear.11.forward", steps=(2,)), TRAINING),
    (Fault("llama", "learning rate", "", "Functional.embedding.0.forward", 1.1), TRAINING),
    (Fault("llama", "decay twice", "", "Functional.embedding.0.forward"), TRAINING_STATISTICS),
    (Fault("mixtral", "nan", "Functional.linear.19.forward", steps=(1,)), TRAINING_STATISTICS),
    (Fault("unet", "gradient", "Functional.conv2d.8.forward", amount=1.05, steps=(1,)), TRAINING),
    (Fault("unet", "forgotten parameter", "", "Functional.conv2d.0.forward", 4), TRAINING),
    (Fault("t5", "narrow", "Functional.softmax.3.forward", amount=BF16, steps=(1,)), TRAINING),
]  # fmt: skip

TWO_STEPS = Recording(steps=2)
TWO_STEPS_STATISTICS = Recording(task="statistics", steps=2)

# Two ranks. Without ranks the fault is in both.
RANK_FAULTS = [
    (Fault("data_parallel", "scaled", "Functional.linear.8.forward", amount=1.003, ranks=(1,)), TWO_STEPS),
    (Fault("data_parallel", "narrow", "Functional.softmax.1.forward", amount=BF16, ranks=(0,)), TWO_STEPS),
    (Fault("data_parallel", "incoming gradient", "Functional.linear.9.forward", amount=1.05, ranks=(0,)), TWO_STEPS),
    (Fault("data_parallel", "idle collective", "Distributed.all_reduce.5.forward"), TWO_STEPS),
    (Fault("data_parallel", "narrow collective", "Distributed.all_reduce.7.forward", amount=BF16), TWO_STEPS),
    (Fault("data_parallel", "missing collective", "all_reduce.34", "Functional.linear.12.forward"), TWO_STEPS),
    (Fault("data_parallel", "missing collective", "all_reduce.5", "Functional.linear.0.forward"), TWO_STEPS),
    (Fault("data_parallel", "nan", "Functional.linear.9.forward", ranks=(1,), steps=(1,)), TWO_STEPS_STATISTICS),
    (Fault("tensor_parallel", "scaled", "Functional.linear.1.forward", amount=1.003, ranks=(1,)), TWO_STEPS),
    (Fault("tensor_parallel", "lost tile", "Functional.linear.3.forward", ranks=(0,)), TWO_STEPS),
    (Fault("tensor_parallel", "idle collective", "Distributed.all_reduce.1.forward"), TWO_STEPS),
    (Fault("tensor_parallel", "scaled collective",
           "Distributed.all_reduce.0.forward", amount=1.003, ranks=(1,)), TWO_STEPS),
    (Fault("tensor_parallel", "missing collective", "all_reduce.0", "Tensor.__add__.0.forward"), TWO_STEPS),
    (Fault("tensor_parallel", "missing collective", "all_reduce.3", "Functional.layer_norm.0.backward"), TWO_STEPS),
    (Fault("tensor_parallel", "weight", "layers.1.up.weight",
           "Functional.linear.2.forward", 1.01, ranks=(1,)), TWO_STEPS),
    (Fault("pipeline", "scaled", "Functional.linear.8.forward", amount=1.003, ranks=(0,)), TWO_STEPS),
    (Fault("pipeline", "lost tile", "Functional.linear.4.forward", ranks=(0,), steps=(1,)), TWO_STEPS),
    (Fault("pipeline", "overwritten", "Tensor.__add__.3.forward", "Distributed.send.0.forward", ranks=(0,)), TWO_STEPS),
    (Fault("pipeline", "damaged receive", "Distributed.recv.0.forward", ranks=(1,)), TWO_STEPS),
    (Fault("pipeline", "damaged receive", "Distributed.recv.0.forward", ranks=(0,)), TWO_STEPS),
    (Fault("pipeline", "noise", "Functional.layer_norm.2.forward", amount=1e-4, ranks=(1,)), TWO_STEPS),
    (Fault("pipeline", "gradient", "Functional.linear.9.forward", amount=1.05, ranks=(1,)), TWO_STEPS),
    (Fault("pipeline", "scaled", "Functional.linear.8.forward", amount=1.003, ranks=(0,)), TWO_STEPS_STATISTICS),
]  # fmt: skip

# Clean pairs of every network: kind, setting of the target, of the golden.
CLEAN = [
    ("repeat", FLOAT32, FLOAT32),
    ("threads", Setting(threads=2), FLOAT32),
    ("kernels", PLAIN, FLOAT32),
    ("bfloat16", AUTOCAST, FLOAT32),
    ("bfloat16 both", PLAIN_AUTOCAST, AUTOCAST),
    ("bfloat16 threads", Setting("bfloat16", threads=2), AUTOCAST),
    ("attention", Setting(attention="sdpa"), FLOAT32),
    ("float64", FLOAT32, Setting("float64")),
]

# Clean pairs of some networks: network, kind, target, golden, what is recorded.
CLEAN_ALSO = [
    ("llama", "bfloat16 weights", Setting("bfloat16 weights"), FLOAT32, Recording()),
    ("unet", "bfloat16 weights", Setting("bfloat16 weights"), FLOAT32, Recording()),
    ("vit", "float16", Setting("float16"), FLOAT32, Recording()),
    ("qwen3", "attention", Setting("bfloat16", attention="sdpa"), AUTOCAST, Recording()),
    ("unet", "kernels", PLAIN, FLOAT32, MIX),
    ("mixtral", "kernels", PLAIN, FLOAT32, MIX),
    ("t5", "bfloat16", AUTOCAST, FLOAT32, MIX),
    ("bert", "repeat", FLOAT32, FLOAT32, MD5),
    ("mixtral", "repeat", FLOAT32, FLOAT32, MD5),
    ("t5", "repeat", FLOAT32, FLOAT32, MD5),
    ("bert", "kernels", PLAIN, FLOAT32, STATISTICS),
    ("llama", "bfloat16", AUTOCAST, FLOAT32, STATISTICS),
    ("unet", "kernels", PLAIN, FLOAT32, STATISTICS),
    ("mixtral", "kernels", PLAIN, FLOAT32, MIX_STATISTICS),
    ("bert", "kernels", PLAIN, FLOAT32, TRAINING),
    ("unet", "kernels", PLAIN, FLOAT32, TRAINING),
    ("mixtral", "kernels", PLAIN, FLOAT32, TRAINING_STATISTICS),
    ("llama", "bfloat16", AUTOCAST, FLOAT32, TRAINING),
    ("t5", "threads", Setting(threads=2), FLOAT32, TRAINING),
    *(
        (network, kind, target, golden, TRAINING)
        for network in ("bert", "unet", "gpt2", "vit", "qwen3")
        for kind, target, golden in (
            ("bfloat16", AUTOCAST, FLOAT32),
            ("bfloat16 both", PLAIN_AUTOCAST, AUTOCAST),
        )
    ),
    *((network, "kernels", PLAIN, FLOAT32, TRAINING) for network in ("gpt2", "vit", "qwen3")),
    *(
        (network, "attention", Setting(attention="sdpa"), FLOAT32, TRAINING)
        for network in ("bert", "gpt2", "vit", "qwen3")
    ),
    ("bert", "bfloat16", AUTOCAST, FLOAT32, Recording(task="statistics", steps=3)),
    ("gpt2", "kernels", PLAIN, FLOAT32, Recording(task="statistics", steps=3)),
    ("qwen3", "bfloat16 both", PLAIN_AUTOCAST, AUTOCAST, TRAINING_STATISTICS),
    *(
        (network, kind, target, golden, Recording())
        for network in ("bert", "llama", "gpt2", "t5", "qwen3", "mixtral")
        for kind, target, golden in (
            ("kernels", PLAIN_RECOMPUTED, FLOAT32),
            ("kernels", PLAIN, REENTRANT),
            ("kernels", PLAIN_REENTRANT, REENTRANT),
            ("bfloat16", AUTOCAST_REENTRANT, FLOAT32),
            ("bfloat16", AUTOCAST, RECOMPUTED),
            ("bfloat16 both", PLAIN_AUTOCAST_REENTRANT, AUTOCAST_RECOMPUTED),
        )
    ),
    *(
        (network, kind, target, FLOAT32, recording)
        for network in ("bert", "llama", "t5", "unet")
        for kind, target in (("kernels", PLAIN), ("bfloat16", AUTOCAST))
        for recording in (INPUTS, OUTPUTS, FORWARD, BACKWARD)
    ),
    *(
        (network, kind, target, golden, TWO_STEPS)
        for network in ("data_parallel", "tensor_parallel", "pipeline")
        for kind, target, golden in (
            ("repeat", FLOAT32, FLOAT32),
            ("kernels", PLAIN, FLOAT32),
            ("bfloat16", AUTOCAST, FLOAT32),
        )
    ),
]


class Pair(NamedTuple):
    """Two runs that are compared."""

    kind: str
    target: Run
    golden: Run

    @property
    def clean(self) -> bool:
        return self.target.fault is None

    @property
    def proof(self) -> tuple[Run, Run]:
        """The target with values, and the same without its fault: they show what the fault alone does."""
        run = self.target._replace(recording=self.target.recording._replace(task="tensor"))
        return run, run._replace(fault=None)

    @property
    def runs(self) -> tuple[Run, ...]:
        """All that have to be made."""
        return (self.target, self.golden) if self.clean else (self.target, self.golden, *self.proof)


def _faulty(fault: Fault, target: Setting, golden: Setting, recording: Recording) -> Pair:
    return Pair(
        fault.kind,
        Run(fault.network, target, recording, fault),
        Run(fault.network, golden, recording),
    )


def _clean(network: str, kind: str, target: Setting, golden: Setting, recording: Recording) -> Pair:
    copy = 1 if target == golden else 0
    return Pair(kind, Run(network, target, recording, copy=copy), Run(network, golden, recording))


def pairs(networks: dict[str, tuple[str, ...]]) -> Iterator[Pair]:
    """All pairs; `networks` says which implementations of attention each has."""
    for fault in FAULTS:
        yield _faulty(fault, FLOAT32, FLOAT32, Recording())
    for fault, target, golden in NOISY_FAULTS + RECOMPUTED_FAULTS:
        yield _faulty(fault, target, golden, Recording())
    for fault, recording in RECORDED_FAULTS + TRAINING_FAULTS + RANK_FAULTS:
        yield _faulty(fault, FLOAT32, FLOAT32, recording)
    for network, attentions in networks.items():
        for kind, target, golden in CLEAN:
            if target.attention in attentions:
                yield _clean(network, kind, target, golden, Recording())
    for row in CLEAN_ALSO:
        yield _clean(*row)
