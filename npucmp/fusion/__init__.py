"""Fusion: fused operators against their unfused chains."""
