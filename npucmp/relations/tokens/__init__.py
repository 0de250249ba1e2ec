"""Tokens: rows of requests that the two runs batch, pad or cut into steps in another way."""
