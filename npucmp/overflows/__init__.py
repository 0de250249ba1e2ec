"""NaN, Inf and saturated values of one run: where each begins, how it spreads, and which of them raise no alarm."""
