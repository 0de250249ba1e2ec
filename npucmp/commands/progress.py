"""A progress bar on stderr, by bytes, with the time left."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Callable, Iterator


@contextmanager
def bar() -> Iterator[Callable[[int, int], None]]:
    """Yield a function (bytes done, bytes in all) that draws the bar."""
    from tqdm import tqdm

    with tqdm(unit="B", unit_scale=True, desc="measuring", leave=False, delay=0.5) as drawn:

        def update(done: int, total: int) -> None:
            drawn.total = total
            drawn.update(done - drawn.n)

        yield update
