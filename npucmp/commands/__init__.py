"""Options in, recipe called, reports written. One command per file."""
