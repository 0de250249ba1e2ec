"""Parse sizes as users write them: `--disk 20GB`."""

from __future__ import annotations

import re
from typing import Optional, Union

from npucmp.errors import UsageError


def in_bytes(name: str, given: Union[int, str, None]) -> Optional[int]:
    """Return bytes, None if no size is given. Units are powers of 1000, as on disks, or with "i" of 1024."""
    if given is None or isinstance(given, int):
        return given
    found = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([KMGTP]?)(i?)B?\s*", given, re.IGNORECASE)
    if not found or not float(found[1]):
        raise UsageError(f"--{name} {given}: needs a positive size, as in --{name} 20GB")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " KMGTP".index(found[2].upper() or " "))
