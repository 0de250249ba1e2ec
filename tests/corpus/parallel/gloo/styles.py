"""How a network is written, drawn from a seed: the same on both sides but for what ranks do together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tests.corpus.parallel.layout import Layout


class Style(NamedTuple):
    """Choices of code.

    batch_first   activations are (batch, sequence, width), else (sequence, batch, width)
    in_place      all-reduce works on its operand, else on a copy
    into_tensor   gather and scatter use one tensor, else a list
    fused_attention  scaled_dot_product_attention, else its parts
    fused_norm    F.rms_norm, else its parts
    in_bucket     gradients of data-parallel ranks are reduced together
    optimizer     "plain", "sgd", "adamw"
    experts       number of experts of each layer, 0 without; choices: how many of them a token has
    dispatch      "all_reduce": all ranks hold all tokens; "all_to_all": data-parallel ranks exchange them
    apart         ranks among which experts are split beside the layout's
    sharded       "", "zero" (the optimizer's state), "fsdp" (the parameters too)
    steps         training steps
    """

    batch_first: bool = False
    in_place: bool = False
    into_tensor: bool = False
    fused_attention: bool = False
    fused_norm: bool = False
    in_bucket: bool = False
    optimizer: str = "plain"
    experts: int = 0
    choices: int = 1
    dispatch: str = ""
    apart: int = 1
    sharded: str = ""
    steps: int = 1

    @property
    def sequence(self) -> int:
        """The dimension of the sequence in activations."""
        return int(self.batch_first)


MIXTURES = {
    "ep2": (Layout(), Style(experts=4, dispatch="all_reduce", apart=2)),
    "ep4": (Layout(), Style(experts=4, dispatch="all_reduce", apart=4)),
    "dp2_ep2": (Layout(dp=2), Style(experts=4, dispatch="all_to_all")),
    "dp4_ep4": (Layout(dp=4), Style(experts=8, dispatch="all_to_all")),
    "tp2_ep2": (Layout(tp=2), Style(experts=4, dispatch="all_reduce")),
    "dp2_zero": (Layout(dp=2), Style(sharded="zero", steps=2)),
    "dp4_zero": (Layout(dp=4), Style(sharded="zero", steps=2)),
    "tp2_dp2_zero": (Layout(tp=2, dp=2), Style(sharded="zero", steps=2)),
    "dp2_fsdp": (Layout(dp=2), Style(sharded="fsdp")),
    "dp4_fsdp": (Layout(dp=4), Style(sharded="fsdp")),
    "tp2_dp2_fsdp": (Layout(tp=2, dp=2), Style(sharded="fsdp")),
}  # layouts that the numpy corpus lacks


def draw_style(draw: np.random.RandomState, layout: Layout, base: Style) -> Style:
    """Choices of code for a layout."""
    flags = draw.rand(6) < (0.5, 0.5, 0.5, 0.3, 0.5, 0.3)
    optimizer = str(draw.choice(["plain", "plain", "sgd", "adamw"]))
    choices = int(draw.choice([1, 2]))
    batch_first, in_place, into_tensor, fused_attention, fused_norm, in_bucket = map(bool, flags)
    return base._replace(
        batch_first=batch_first, in_place=in_place, into_tensor=into_tensor,
        fused_attention=fused_attention and layout.cp == 1, fused_norm=fused_norm,
        in_bucket=in_bucket and layout.dp * layout.cp > 1 and not base.sharded,
        optimizer="plain" if base.sharded else optimizer, choices=choices,
    )  # fmt: skip
