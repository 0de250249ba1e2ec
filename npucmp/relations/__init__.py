"""Relations: which tensors of the target make a golden tensor, if the two runs arrange their numbers otherwise.

A folder for each kind: ranks, tokens, weights, frameworks. The modules beside the folders serve several of them.
"""
