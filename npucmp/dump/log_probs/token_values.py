"""Lists and arrays of a file as the arrays of a TokenRequest: floats with null, masks, ids, the most likely tokens.

A value of another kind raises ValueError with the reason; the caller knows the file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

from npucmp.model.token_batch import Bools, Floats, Integers, TopLogProbs

if TYPE_CHECKING:
    from typing import TypeGuard

OTHER_IDS = "ids that are no numbers, or of another length than the log-probabilities, are left out"
_TOKEN_ID = re.compile(r"token_id:([0-9]{1,18})")
_MOST_CELLS = 1 << 26  # of a table of the most likely tokens, 1 GB
_MOST_TOP = 1024  # tokens of a position; vLLM and SGLang allow fewer


class TokenIds(NamedTuple):
    """The tokens of a response; `are_texts` if the ids are hashes of texts."""

    ids: Integers
    are_texts: bool


def is_list(value: Any) -> TypeGuard[Any]:
    """Return whether a value is a list of a file: a list, a tuple or an array of one dimension or more."""
    return (isinstance(value, (list, tuple))) or (isinstance(value, np.ndarray) and value.ndim > 0)


def floats_of(values: Any) -> tuple[Floats, Optional[Bools]]:
    """Return log-probabilities and where they are known; None if no value is null."""
    if isinstance(values, np.ndarray):
        with np.errstate(invalid="ignore"):  # a signalling NaN
            found = values.astype(np.float64) if values.dtype.kind in "fiub" else _refused(values.dtype)
        return (found.reshape(len(found)) if found.ndim == 2 and found.shape[1] == 1 else _flat(found)), None
    if not isinstance(values, (list, tuple)):
        raise ValueError(f"log-probabilities of type {type(values).__name__}")
    odd = [
        one
        for one in values
        if one is not None and type(one) not in (float, int) and not isinstance(one, (np.floating, np.integer))
    ]
    if odd:
        raise ValueError(f"a log-probability is no number but {type(odd[0]).__name__}")
    missing = np.fromiter((one is None for one in values), np.bool_, len(values))
    try:
        read = np.fromiter((np.nan if one is None else one for one in values), np.float64, len(values))
    except OverflowError:
        raise ValueError("a log-probability is beyond the range of float64") from None
    return read, (~missing if missing.any() else None)


def _flat(found: Floats) -> Floats:
    if found.ndim != 1:
        raise ValueError(f"log-probabilities have {found.ndim} dimensions for one request")
    return found


def _refused(kind: Any) -> Any:
    raise ValueError(f"log-probabilities of type {kind}")


def mask_of(values: Any) -> Bools:
    """Return a mask; a weight other than 0 counts."""
    if isinstance(values, np.ndarray):
        return np.asarray(_flat(values.astype(np.float64)) != 0, np.bool_)
    if not all(type(one) in (int, float, bool) for one in values):
        raise ValueError("a mask holds something else than numbers")
    return np.fromiter((bool(one) for one in values), np.bool_, len(values))


def ids_of(values: Any) -> Optional[TokenIds]:
    """Return the tokens of a list of numbers, of "token_id:N", or of texts; None for a text, which is not tokenised."""
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "iuf":
            return None
        if not np.isfinite(values).all() or not ((np.abs(values) < 1 << 62) & (values == np.trunc(values))).all():
            return None
        return TokenIds(values.astype(np.int64), False)
    if not isinstance(values, (list, tuple)):
        return None
    if all(type(one) in (int, float) and abs(one) < 1 << 62 and one % 1 == 0 for one in values):
        return TokenIds(np.fromiter(map(int, values), np.int64, len(values)), False)
    if not all(isinstance(one, str) for one in values):
        return None
    numbers = [_TOKEN_ID.fullmatch(one) for one in values]
    if all(numbers):
        return TokenIds(np.array([int(one[1]) for one in numbers if one], np.int64), False)
    return TokenIds(np.array([hash_of(one) for one in values], np.int64), True)


def experts_of(values: Any) -> Optional[Integers]:
    """Return experts (positions, layers, k) as integers of any width; None for values of another form."""
    if not is_list(values) or not len(values):
        return None
    try:
        found = np.asarray(values)
    except ValueError:  # lists of different lengths
        return None
    return found if found.ndim == 3 and found.dtype.kind in "iu" else None


def first_ids(lists: Iterable[Any], least: int) -> tuple[Optional[TokenIds], str]:
    """Return the first list of tokens that has at least so many, and a note if there are only others."""
    given = [one for one in lists if is_list(one)]
    found = next((one for one in map(ids_of, given) if one is not None and len(one.ids) >= least), None)
    return found, OTHER_IDS if given and found is None else ""


def hash_of(text: str) -> int:
    """Return the id of a text: the same in every process; -1 is none."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=7).digest(), "little")


def top_of_positions(positions: Sequence[Any]) -> Optional[TopLogProbs]:
    """Return the most likely tokens of lists of (log-probability, id, …), of dicts token → log-probability, or of dicts
    with token and logprob; None if a position has another form."""
    rows = [_top_pairs(one) for one in positions]
    if any(row is None for row in rows):
        return None
    width = max((len(row) for row in rows if row), default=0)
    if not width or width > _MOST_TOP or width * len(rows) > _MOST_CELLS:
        return None
    ids = np.full((len(rows), width), -1, np.int64)
    found = np.full((len(rows), width), np.nan)
    for at, row in enumerate(rows):
        for column, (token, value) in enumerate(row or ()):
            ids[at, column], found[at, column] = token, value
    return TopLogProbs(ids, found)


def _top_pairs(one: Any) -> Optional[list[tuple[int, float]]]:
    if one is None:
        return []
    if isinstance(one, Mapping):
        pairs = [(token, value.get("logprob") if isinstance(value, Mapping) else value) for token, value in one.items()]
    elif isinstance(one, (list, tuple)) and all(isinstance(row, Mapping) for row in one):
        pairs = [(row.get("token_id", row.get("token")), row.get("logprob")) for row in one]
    elif isinstance(one, (list, tuple)) and all(isinstance(row, (list, tuple)) and len(row) > 1 for row in one):
        pairs = [(row[1], row[0]) for row in one]
    else:
        return None
    found = []
    for token, value in pairs:
        if value is None or type(value) not in (int, float):
            return None
        identity = _identity(token)
        if identity is None:
            return None
        found.append((identity, float(value)))
    return found


def _identity(token: Any) -> Optional[int]:
    if type(token) is int and abs(token) < 1 << 62:
        return token
    if not isinstance(token, str):
        return None
    number = _TOKEN_ID.fullmatch(token) or (re.fullmatch(r"([0-9]{1,18})", token))
    return int(number[1]) if number else hash_of(token)
