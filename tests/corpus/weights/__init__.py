"""Generated pairs of checkpoints: networks, conventions and faults, written in plain numpy, independent of npucmp.

python -m tests.corpus.weights SEED [SEED…]     the score of these seeds; 0 to 99 are open, from 100 on held
"""
