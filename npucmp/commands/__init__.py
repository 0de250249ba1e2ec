"""The commands, one per file: each passes its options to a workflow and writes the report."""
