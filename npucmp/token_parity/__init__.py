"""Log-probabilities of the same tokens from two engines: requests paired, noise of a token, classes of a difference.

request_pairing   batches of two recordings → pairs of requests
token_pair        pairs of requests → arrays of a step
noise             how far a difference is beyond the noise of logits
rules/            the classes in their order, a file each
judgement         steps → findings, figures, trend
"""
