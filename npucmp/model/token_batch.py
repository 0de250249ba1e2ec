"""Log-probabilities of sampled tokens as one engine recorded them: requests, batches of a step, and their recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]


class TopLogProbs(NamedTuple):
    """The most likely tokens of each position: ids and log-probabilities, both (positions, k); NaN where a position
    has fewer than k, -inf where the engine removed the token."""

    ids: Integers
    log_probs: Floats


@dataclass(frozen=True, eq=False)
class TokenRequest:
    """One request: the log-probabilities of its response, in natural logarithms.

    log_probs   one per position of the response, or the only number if `is_total`; NaN is what the file holds
    known       False where the file holds null
    mask        True where a token counts in the loss; None if it is not recorded
    ids         token of each position; None if they are not recorded
    are_texts   ids are hashes of the texts of tokens
    is_total    the only number is the sum, or the mean, over the response
    length      number of tokens of the response, if is_total
    is_ragged   the list has the length of the response, without padding
    open        why the numbers cannot be compared (valid=0 of verl), "" if they can
    experts     (positions, layers, k) experts of each token; None if they are not recorded
    key         the identity of the request in the file, "" if there is none
    note        a sentence on what the file holds and is not used
    """

    log_probs: Floats
    known: Optional[Bools] = None
    mask: Optional[Bools] = None
    ids: Optional[Integers] = None
    are_texts: bool = False
    is_total: bool = False
    length: Optional[int] = None
    is_ragged: bool = False
    open: str = ""
    key: str = ""
    top: Optional[TopLogProbs] = None
    note: str = ""
    experts: Optional[Integers] = None


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """The requests of one step, in the order of the files. A step is None if no name and no record has a number."""

    step: Optional[int]
    requests: tuple[TokenRequest, ...]
    path: str = ""


@dataclass(frozen=True, eq=False)
class TokenRecording:
    """All batches of one engine.

    names     names under which the log-probabilities stand in the files
    problems  (path, reason) of files that cannot be read
    skipped   files without log-probabilities
    lost      records without log-probabilities, in files that have some
    """

    path: str
    batches: tuple[TokenBatch, ...]
    names: tuple[str, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    skipped: int = 0
    bytes_read: int = 0
    lost: int = 0
