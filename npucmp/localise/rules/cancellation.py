"""A sum of large terms that nearly cancel holds rounding of the terms, even if the sum is small.

Source: Higham, Accuracy and Stability of Numerical Algorithms, §4.2. Evidence: gradients of key biases, which are zero
in exact arithmetic because of softmax: rel_l2 1.2 in float32, 2.8e4 in bfloat16, both clean. In silent clean pairs of
the corpus, errors that no other rule explains reach 0.71 of the bound.

The rule covers sums of K terms of size (rms) t: add, mean, products, the gradients of both, and the gradients of
softmax and norms (localise/conditioning.py). The absolute error may be 8 max(e, u) √K t + 4 walks. A walk is the
rounding of the sum of one side in the worst order of addition: 0.42 u √(K/3 · r² + K/2 · Q), with the sum r and
the sum Q = K t² of the squared terms.
"""

from __future__ import annotations

from npucmp.localise.rule_context import ErrorRule

RULE = ErrorRule(
    "explanation",
    "cancellation",
    "a sum that cancels contains the rounding of its terms: key-bias gradients have rel_l2 1.2 in clean float32 runs",
    applies=lambda case: not case.is_choice and case.rounding_of_terms > 0,
    bound=lambda case: case.rounding_of_terms,
)
