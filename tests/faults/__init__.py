"""Calls of the system that fail once, and kills at random moments: what a comparison then leaves."""
