"""Ill-conditioned operators: exp, log, quotients, normalisations, powers make more of an error, by their operands.

Source: Higham, Accuracy and Stability of Numerical Algorithms, §1.6; localise/condition.py has the numbers. Evidence:
clean softmax over scores of 30 grows errors 30 times; estimates with norms instead of elements are right within 3.
"""

from __future__ import annotations

from npucmp.localise.case import Rule

CONDITIONED = 3.0  # times the estimated condition number

RULE = Rule(
    "explanation",
    "condition",
    f"the error that came in, times {CONDITIONED:g} times the operator's condition number for these values",
    applies=lambda case: case.before > 0 and not case.is_choice and case.amplification > 1,
    bound=lambda case: CONDITIONED * case.before * case.amplification,
)
