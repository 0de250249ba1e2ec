"""A third run of higher precision: which of two runs is further from the truth, and in which operator."""
