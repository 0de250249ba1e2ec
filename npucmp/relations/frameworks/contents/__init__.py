"""Alignment without names: operators of two frameworks are paired by the values that they compute.

content.py          the values of a tensor in any order: hash, quantiles
content_graph.py    which contents an operator reads and writes
content_pairs.py    the pairs that are found, and the region that is known to agree
axis_orders.py      orders of axes that pairs show: NHWC and NCHW, (S,B,H) and (B,S,H)
value_match.py      pairs by values
block_orders.py     weights whose blocks stand in another order, and what is computed with them
learned_types.py    which types are partners, from the pairs by values
structure_match.py  pairs by the partners that are read, and copies
weight_anchors.py   pairs by the weights that are read
similarity.py       pairs by nearness behind a fault
slices.py           parts: one content is a slice of another
content_alignment.py  the order of these stages, and pairs as in another layer
operator_pairs.py   contents → pairs of tensors, operator by operator
"""
