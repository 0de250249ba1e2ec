"""Requests of a batch by name: arrays of verl (batch, positions), lists of tensors of slime and miles, lists of JSON.

    rollout_log_probs, old_log_probs    (B, R); a list of B arrays; (B,): one number for each request
    response_mask                       (B, R); else the last R columns of attention_mask (B, P + R)
    responses, tokens                   (B, R), or (B, P + R), of which the response is the end
    valid                               0: the numbers are not computed
    topk_ids, topk_log_probs            (B, R, k)

Source: verl (trainer/ppo, utils/debug/metrics.py), slime (utils/train_dump_utils.py). docs/parity.md lists all names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

import numpy as np

from npucmp.dump.log_probs import field_names as names
from npucmp.dump.log_probs.field_names import first_of
from npucmp.dump.log_probs.json_requests import last_of, token_count
from npucmp.dump.log_probs.token_values import floats_of, ids_of, is_list, mask_of
from npucmp.model.token_batch import TokenRequest, TopLogProbs


def inner_table(value: Any) -> Any:
    """Return the batch within the wrappers that trainers write: {"rollout_data": …}, {"batch": …}, {"tensors": …}."""
    for _ in range(3):
        inner = next((value[key] for key in ("rollout_data", "batch", "tensors", "_tensordict", "data")
                      if isinstance(value, Mapping) and isinstance(value.get(key), Mapping)), None)  # fmt: skip
        if inner is None:
            break
        value = {**{key: one for key, one in value.items() if key in names.STEPS}, **inner}
    return value


def is_table(value: Any, side: str) -> bool:
    """Return whether a value is a batch with log-probabilities of a side: arrays, or lists of lists."""
    if not isinstance(value, Mapping):
        return False
    name = names.name_of(value, names.LOG_PROBS[side])
    found = value.get(name)
    if isinstance(found, np.ndarray):
        return found.ndim > 0
    return bool(name) and is_list(found) and len(found) > 0 and (is_list(found[0]) or _has_rows(value, len(found)))


def _has_rows(table: Mapping[str, Any], count: int) -> bool:
    """Return whether a list of numbers is one number for each request, by the lists of lists beside it."""
    beside = first_of(table, (*names.MASKS, *names.IDS))
    return is_list(beside) and len(beside) == count and is_list(beside[0])


def requests_of_table(table: Mapping[str, Any], side: str) -> tuple[tuple[TokenRequest, ...], str]:
    """Return the requests of a batch and the name of their log-probabilities. ValueError for malformed values."""
    name = names.name_of(table, names.LOG_PROBS[side])
    rows = table[name]
    if isinstance(rows, np.ndarray) and rows.ndim == 3 and rows.shape[2] == 1:
        rows = rows[:, :, 0]
    if isinstance(rows, np.ndarray) and rows.ndim > 2:
        raise ValueError(f"{name} has {rows.ndim} dimensions, it must have (batch, positions)")
    of_arrays = isinstance(rows, np.ndarray)
    if of_arrays and rows.ndim == 1 and not _is_one_number_each(table, len(rows)):
        return (_row({key: [value] for key, value in table.items()}, name, 0, rows, True, True),), name
    is_total = not is_list(rows[0]) if len(rows) else False
    return tuple(_row(table, name, at, row, of_arrays, not is_total) for at, row in enumerate(rows)), name


def _is_one_number_each(table: Mapping[str, Any], count: int) -> bool:
    for key in (*names.MASKS, *names.IDS):
        beside = table.get(key)
        if isinstance(beside, np.ndarray) and beside.ndim == 2 and len(beside) == count:
            return True
    lengths = first_of(table, names.LENGTHS)
    return is_list(lengths) and len(lengths) == count


def _row(table: Mapping[str, Any], name: str, at: int, row: Any, of_arrays: bool, has_tokens: bool) -> TokenRequest:
    """Return request number `at` of a batch."""
    values, known = floats_of(row if has_tokens else [row])
    mask, tokens = _mask(table, at), ids_of(_at(table, names.IDS, at))
    length = _at(table, names.LENGTHS, at)
    length = token_count(length)
    valid, key = _flag(table, at), _at(table, names.KEYS, at)
    shared: dict[str, Any] = {
        "is_computed": valid,
        "key": str(key)[:200] if isinstance(key, (int, str, np.integer)) else "",
        "are_texts": tokens is not None and tokens.are_texts,
    }
    beside = max(0 if mask is None else len(mask), 0 if tokens is None else len(tokens.ids), length or 0)
    if not has_tokens or (len(values) == 1 != length and beside > 1):
        if length is None:
            length = int(mask.sum()) if mask is not None else None if tokens is None else len(tokens.ids)
        return TokenRequest(values, known, is_total=True, length=length, **shared)
    count = len(values)
    if not of_arrays and length is not None and count > length:  # of the whole sequence
        values, known, count = values[count - length :], last_of(known, length), length
    ids = None if tokens is None or len(tokens.ids) < count else tokens.ids[len(tokens.ids) - count :]
    return TokenRequest(
        values, known, last_of(mask, count), ids, is_ragged=not of_arrays, top=_top(table, at, count), **shared
    )


def _mask(table: Mapping[str, Any], at: int) -> Any:
    value = _at(table, names.MASKS, at)
    return mask_of(value) if is_list(value) else None


def _at(table: Mapping[str, Any], keys: tuple[str, ...], at: int) -> Optional[Any]:
    """Return the entry of a request in the first list of these names that has one."""
    for key in keys:
        value = table.get(key)
        if is_list(value) and len(value) > at:
            return value[at]
    return None


def _flag(table: Mapping[str, Any], at: int) -> bool:
    value = first_of(table, names.VALID)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if is_list(value):
        value = value[at] if at < len(value) else value[0] if len(value) == 1 else None
    return value is None or bool(np.all(value))


def _top(table: Mapping[str, Any], at: int, count: int) -> Optional[TopLogProbs]:
    ids, found = _at(table, names.TOP_IDS, at), _at(table, names.TOP_LOG_PROBS, at)
    if not isinstance(ids, np.ndarray) or not isinstance(found, np.ndarray):
        return None
    if ids.ndim != 2 or ids.shape != found.shape or len(ids) < count:
        return None
    return TopLogProbs(ids[len(ids) - count :].astype(np.int64), found[len(found) - count :].astype(np.float64))
