"""Generated pairs of log-probabilities of two engines, with a fault of one class or none. Imports only numpy.

python -m tests.corpus.parity SEED [--pairs N] [--near | --few] [--cases]
"""
