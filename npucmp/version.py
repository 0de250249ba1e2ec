"""The version of npucmp, which every module may import."""

from __future__ import annotations

__version__ = "0.2.0.dev0"
SCHEMA_VERSION = 1  # of summary.json and JSON Lines; is raised when a key changes its meaning
