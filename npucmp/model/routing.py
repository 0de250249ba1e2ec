"""The experts of the tokens of one layer, on both sides: one row of routing.csv."""

from __future__ import annotations

from typing import NamedTuple, Optional


class RoutedLayer(NamedTuple):
    """How the experts of a layer correspond.

    operator, slot  of the ids; `layer`: the index of the layer, if one tensor holds several
    tokens          the number of tokens; `reordered`: of those with the same experts in another order
    changed         the number of tokens with other experts, `beyond`: of those whose logits show no tie
    overlap         the share of experts that both sides have
    first           the first token that changed beyond a tie, else the first that changed; None if none did
    target, golden  its experts
    margin, noise   the distance of the golden's logits that were exchanged, and the difference of the token's logits of
                    both sides; None without logits
    """

    operator: str
    slot: str
    layer: Optional[int]
    tokens: int
    reordered: int
    changed: int
    beyond: int
    overlap: float
    first: Optional[int] = None
    target: tuple[int, ...] = ()
    golden: tuple[int, ...] = ()
    margin: Optional[float] = None
    noise: Optional[float] = None

    @property
    def where(self) -> str:
        return self.operator if self.layer is None else f"layer {self.layer} of {self.operator}"

    @property
    def words(self) -> str:
        """The first change in words."""
        if self.first is None:
            return ""
        sides = (", ".join(map(str, side)) for side in (self.target, self.golden))
        words = "token {}, {}: experts {{{}}} against {{{}}}".format(self.first, self.where, *sides)
        if self.margin is None or self.noise is None:
            return words
        if not self.noise:
            return f"{words}, margin of the logits {self.margin:.2g}, which are equal on both sides"
        return f"{words}, margin of the logits {self.margin / self.noise:.2g} times the noise"
