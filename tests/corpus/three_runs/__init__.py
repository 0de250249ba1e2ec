"""Three runs of small networks: a target and a golden in 16 bits or with 8-bit products, and the truth in float32 or
float64."""
