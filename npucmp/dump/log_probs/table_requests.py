"""Requests of a batch by name: arrays of verl (batch, positions), lists of tensors of slime and miles, lists of JSON.

    rollout_log_probs, old_log_probs    (B, R); a list of B arrays; (B,): one number for each request
    response_mask                       (B, R); else the last R columns of attention_mask (B, P + R)
    responses, tokens                   (B, R), or (B, P + R), of which the response is the end
    valid                               0: the numbers are not computed
    topk_ids, topk_log_probs            (B, R, k)
    logprobs, logprob_token_ids         (B, R, k), or lists: the log-probability of the sampled id is taken

Source: verl (trainer/ppo, utils/debug/metrics.py), slime (utils/train_dump_utils.py). docs/parity.md lists all names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npucmp.dump.log_probs import field_names as names
from npucmp.dump.log_probs.field_names import first_of
from npucmp.dump.log_probs.json_requests import has_lists, request_of
from npucmp.dump.log_probs.token_values import is_list
from npucmp.model.token_batch import TokenRequest


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
    if name and has_lists(value, name):
        return False
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
    if isinstance(rows, np.ndarray) and rows.ndim > 2 + (names.IDS_OF_LISTS in table):
        raise ValueError(f"{name} has {rows.ndim} dimensions, it must have (batch, positions)")
    of_arrays = isinstance(rows, np.ndarray)
    if of_arrays and rows.ndim == 1 and not _is_one_number_each(table, len(rows)):
        return (request_of({**table, name: rows}, name, is_ragged=False),), name
    return tuple(request_of({**_row(table, at), name: row}, name, not of_arrays) for at, row in enumerate(rows)), name


def _is_one_number_each(table: Mapping[str, Any], count: int) -> bool:
    for key in (*names.MASKS, *names.IDS):
        beside = table.get(key)
        if isinstance(beside, np.ndarray) and beside.ndim == 2 and len(beside) == count:
            return True
    lengths = first_of(table, names.LENGTHS)
    return is_list(lengths) and len(lengths) == count


def _row(table: Mapping[str, Any], at: int) -> dict[str, Any]:
    """Return the entries of request number `at` of a batch by name; () where a list is shorter than the batch."""
    lists = {key: value for key, value in table.items() if key in names.KNOWN and is_list(value)}
    row = {key: value[at] if at < len(value) else () for key, value in lists.items()}
    return {**row, names.VALID[0]: _flag(table, at)}


def _flag(table: Mapping[str, Any], at: int) -> bool:
    value = first_of(table, names.VALID)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if is_list(value):
        value = value[at] if at < len(value) else value[0] if len(value) == 1 else None
    return value is None or bool(np.all(value))
