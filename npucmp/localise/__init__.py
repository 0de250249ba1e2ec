"""Find in graph-ordered Findings the operator that causes an error and the operators that propagate it."""
