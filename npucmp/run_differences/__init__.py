"""Differences of two runs in operators, arguments, inputs and weights, without a health check."""
