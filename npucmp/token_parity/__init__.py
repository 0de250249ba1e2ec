"""Log-probabilities of the same tokens from two engines: requests paired, noise of a token, classes of a difference.

request_pairing   batches of two recordings → pairs of requests
token_pair        pairs of requests → arrays of a step
noise             how far a difference is beyond the noise of logits
clean_parts       requests and positions that are clean
rules/            what the records show, a file each
candidates/       models of the difference, a file each
decision          a step → its finding and the fits
judgement         steps → findings, figures, trend
"""
