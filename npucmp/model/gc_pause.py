"""Pause of the garbage collector, for work that creates hundreds of thousands of permanent records."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import Iterator


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable the garbage collector, which would scan all records repeatedly: a third of the time to open a dump.json
    or to write a report. The records contain no reference cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
