"""Work that makes hundreds of thousands of records that stay."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import Iterator


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the garbage collector, which looks at all records again and again: a third of the time to open a
    dump.json or to write a report. What is made here refers to nothing in circles.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
