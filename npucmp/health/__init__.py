"""Checks of one run: facts.py is what rules see, rule.py what a rule is, rules/ has them, one file per family.

runs ──build──► Health ──judge──► Symptoms and Decisions
     one pass   facts    RULES
"""

from npucmp.health.rule import Found, rule

__all__ = ["Found", "rule"]
