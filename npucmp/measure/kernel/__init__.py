"""Measurement kernels: one fused pass over two flat arrays → Moments. No operators, files, thresholds or verdicts."""
