"""All rules, one file per family; a plug-in of the user's adds to them. Order: that of causes before consequences."""

from __future__ import annotations

from npucmp.check.rule import Rule
from npucmp.check.rules import gradients, updates, weights

RULES: "tuple[Rule, ...]" = (
    weights.nonfinite,
    weights.zero,
    weights.constant,
    weights.scale_large,
    weights.scale_small,
    weights.unlike_peers,
    weights.range_,
    weights.outlier,
    weights.shared,
    weights.equal_then_apart,
    weights.index_range,
    updates.not_changed,
    updates.none_change,
    updates.below_resolution,
    updates.frozen,
    updates.change_large,
    updates.all_change_large,
    updates.all_change_small,
    updates.uphill,
    updates.arithmetic,
    gradients.missing,
    gradients.zero,
    gradients.vanishing,
    gradients.exploding,
    gradients.nonfinite,
    gradients.accumulated,
    gradients.norm_jump,
    gradients.underflow16,
    gradients.rank_differs,
)
