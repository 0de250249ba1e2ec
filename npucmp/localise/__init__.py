"""Findings in graph order → which operator bears the error, which passes it on."""
