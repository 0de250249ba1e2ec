"""One fused pass over two flat arrays → Moments. Knows no operators, files, thresholds or verdicts."""
