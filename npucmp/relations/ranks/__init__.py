"""Ranks: a golden tensor made of the parts that several ranks hold, for example under tensor parallelism."""
