"""Options in, workflow called, reports written. One command per file."""
