"""Pairs of runs of the same requests in other token layouts: padded, packed, in steps, of another batch.

network.py   a small decoder in numpy: the tensors of each operator, request by request
layouts.py   requests → the rows of each step
faults.py    faults of the target, and the operator and token at which each of them shows first
traps.py     targets that lack or exchange tokens, which must not agree
cases.py     the draw of a seed: names, format, type, layouts of both sides
score.py     what npucmp answers, graded
"""
