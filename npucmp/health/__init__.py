"""Checks of one run. facts.py holds the facts that rules read, rule.py defines a rule, rules/ holds one file per
family.

runs ──build──► Health ──judge──► Symptoms and Decisions
     one pass   facts    RULES
"""

from npucmp.health.rule import Found, rule

__all__ = ["Found", "rule"]
