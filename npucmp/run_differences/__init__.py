"""Differences of two runs in operators, arguments, inputs and weights, known without a look at their health."""
