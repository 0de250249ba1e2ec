"""Requests of JSON and JSON Lines: answers of engines, samples of slime and miles, records of users.

    SGLang       {"meta_info": {"output_token_logprobs": [[lp, id, text], …], "output_top_logprobs": [[[lp, id], …]]}};
                 [{"token_id": id, "logprob": lp}, …] in place of the triples
    completions  {"choices": [{"logprobs": {"token_logprobs": […], "tokens": ["token_id:N", …], "top_logprobs": […]}}]}
    chat         {"choices": [{"logprobs": {"content": [{"token", "logprob", "top_logprobs": […]}]}}]}
    vLLM         {"outputs": [{"token_ids": […], "cumulative_logprob": lp, "logprobs": [{id: {"logprob": lp}}, …]}]}
    vLLM's tests [[ids, text, [{id: {"logprob": lp}}, …]], …]
    slime, miles {"tokens": […], "response_length": n, "loss_mask": […], "rollout_log_probs": […]}
    OpenRLHF     {"observation_tokens": […], "action_ranges": [[start, end], …], "rollout_log_probs": [0, …]}
    TRL          {"completion_ids": […], "logprobs": [[lp, …], …], "logprob_token_ids": [[id, …], …]}
    records      {"cumulative_logprob": lp, "token_ids": […]}, {"log_probs": […]}

A file is one such object, a list of them, an object of lists (a batch, see table_requests.py), or one object a line.
Source: protocols of SGLang and vLLM, the OpenAI interface, slime/utils/types.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Optional

import numpy as np

from npucmp.dump.log_probs import field_names as names
from npucmp.dump.log_probs.field_names import first_of
from npucmp.dump.log_probs.token_values import (
    OTHER_IDS,
    TokenIds,
    experts_of,
    first_ids,
    floats_of,
    ids_of,
    is_list,
    mask_of,
    top_of_positions,
)
from npucmp.model.token_batch import TokenRequest, TopLogProbs

MOST_TOKENS = 1 << 31  # of a response
NOT_COMPUTED = "not computed, by the flag valid of the files"
_DEPTH = 4  # of an object within an object: {"response": {"body": {"choices": …}}}


class NumberedRequest(NamedTuple):
    """A request, the number of its step if its record has one, and the name of its log-probabilities."""

    request: TokenRequest
    step: Optional[int]
    name: str


def requests_of(record: Any, side: str, depth: int = 0) -> Iterator[Optional[NumberedRequest]]:
    """Yield the requests of a record, and None for each object within that has no log-probabilities. ValueError for
    malformed values."""
    if depth > _DEPTH:
        yield None
    elif isinstance(record, list):
        logged = _logged(record)
        if logged is not None:
            yield NumberedRequest(logged, None, "logprobs")
            return
        for one in record:
            yield from requests_of(one, side, depth + 1)
    elif isinstance(record, Mapping):
        step = first_of(record, names.STEPS)
        step = step if type(step) is int and 0 <= step < 1 << 53 else None
        found = [*_answers(record, side)] or _inner(record, side, depth) or [None]
        yield from (one if one is None or one.step is not None else one._replace(step=step) for one in found)


def _logged(record: list[Any]) -> Optional[TokenRequest]:
    """Return the request of ids, text and the most likely tokens of each position; None for another list."""
    if len(record) != 3 or not isinstance(record[1], str) or not is_list(record[0]) or not is_list(record[2]):
        return None
    return _of_tops(record[0], record[2])


def _of_tops(ids: Any, tops: Any) -> Optional[TokenRequest]:
    """Return the request of sampled ids, whose log-probabilities stand among the most likely of each position."""
    tokens, found = ids_of(ids), top_of_positions(tops)
    if tokens is None or found is None or len(tokens.ids) != len(found.ids):
        return None
    at = found.ids == tokens.ids[:, None]
    values = np.where(at.any(1), np.where(at, found.log_probs, 0).sum(1), np.nan)
    return TokenRequest(values, at.any(1), None, tokens.ids, tokens.are_texts, is_ragged=True, top=found)


def _inner(record: Mapping[str, Any], side: str, depth: int) -> list[Optional[NumberedRequest]]:
    """Return the requests within a wrapper; a single one without an identity has that of the wrapper."""
    inner = next((record[key] for key in ("samples", "response", "body", "data", "requests")
                  if isinstance(record.get(key), (Mapping, list))), None)  # fmt: skip
    found = [*requests_of(inner, side, depth + 1)] if inner is not None else []
    if len(found) == 1 and found[0] is not None and not found[0].request.key:
        found = [found[0]._replace(request=replace(found[0].request, key=_key(record)))]
    return found


def _answers(record: Mapping[str, Any], side: str) -> Iterator[Optional[NumberedRequest]]:
    meta = record.get("meta_info")
    if isinstance(meta, Mapping) and is_list(meta.get("output_token_logprobs")):
        yield NumberedRequest(_sglang(record, meta), None, "output_token_logprobs")
        return
    for key in ("choices", "outputs"):
        several = record.get(key)
        if isinstance(several, list) and several:
            for one in several:
                found = _choice(one) if isinstance(one, Mapping) else None
                yield None if found is None else NumberedRequest(found[0], None, found[1])
            return
    both = {**record, **(meta if isinstance(meta, Mapping) else {})}
    name = names.name_of(both, names.LOG_PROBS[side])
    is_number = name and type(both[name]) in (int, float)
    if is_number or (name and is_list(both[name]) and (not _is_batch(both[name]) or has_lists(both, name))):
        yield NumberedRequest(request_of(both, name), None, name)


def _is_batch(value: Any) -> bool:
    return is_list(value) and len(value) > 0 and is_list(value[0])


def _sglang(record: Mapping[str, Any], meta: Mapping[str, Any]) -> TokenRequest:
    rows = meta["output_token_logprobs"]
    if rows and all(isinstance(row, Mapping) for row in rows):
        rows = [(row.get("logprob"), row.get("token_id")) for row in rows]
    if not all(isinstance(row, (list, tuple)) and len(row) > 1 for row in rows):
        raise ValueError("output_token_logprobs holds something else than [log-probability, id, text]")
    values, known = floats_of([row[0] for row in rows])
    return _request(
        values, known, [[row[1] for row in rows]], meta.get("output_top_logprobs"), _key({**meta, **record})
    )


def _choice(one: Mapping[str, Any]) -> Optional[tuple[TokenRequest, str]]:
    """Return the request of a choice of the OpenAI interface or of an output of vLLM, and the name of its numbers."""
    logged = one.get("logprobs")
    if isinstance(logged, Mapping) and is_list(logged.get("token_logprobs")):
        values, known = floats_of(logged["token_logprobs"])
        lists = one.get("token_ids"), logged.get("tokens")
        return _request(values, known, lists, logged.get("top_logprobs"), ""), "token_logprobs"
    if isinstance(logged, Mapping) and isinstance(logged.get("content"), list):
        rows = logged["content"]
        if not all(isinstance(row, Mapping) for row in rows):
            raise ValueError("logprobs.content holds something else than objects")
        values, known = floats_of([row.get("logprob") for row in rows])
        lists = one.get("token_ids"), [row.get("token") for row in rows]
        return _request(values, known, lists, [row.get("top_logprobs") for row in rows], ""), "logprobs.content"
    found = _of_tops(one.get("token_ids"), logged) if is_list(logged) else None
    if found is not None:
        return found, "logprobs"
    if type(one.get("cumulative_logprob")) in (int, float):
        return request_of(one, "cumulative_logprob"), "cumulative_logprob"
    return None


def _request(values: Any, known: Any, lists: Iterable[Any], tops: Any, key: str) -> TokenRequest:
    """Return a request of an engine, whose list has one number for each sampled token."""
    top = top_of_positions(tops) if is_list(tops) and len(tops) == len(values) else None
    tokens, note = first_ids(sorted(filter(is_list, lists), key=lambda one: len(one) != len(values)), len(values))
    if tokens is not None and len(tokens.ids) > len(values):
        tokens, note = None, OTHER_IDS
    ids, are_texts = (None, False) if tokens is None else tokens
    return TokenRequest(values, known, None, ids, are_texts, is_ragged=True, key=key, top=top, note=note)


def request_of(record: Mapping[str, Any], name: str, is_ragged: bool = True) -> TokenRequest:
    """Return the request of a record of slime, miles or a user, or of a row of a batch, whose arrays are not ragged."""
    value, length = record[name], token_count(first_of(record, names.LENGTHS))
    lists = [record.get(key) for key in names.IDS]
    tokens, _ = first_ids(lists, 0)
    lists_of = None
    if _is_batch(value):
        value, lists_of = _sampled_of_lists(record, name, tokens)
    mask = first_of(record, names.MASKS)
    if mask is None and is_list(record.get(names.RANGES)) and (is_list(value) or tokens is not None):
        mask = _within(record[names.RANGES], len(value) if tokens is None else len(tokens.ids))
    mask, is_masked = (mask_of(mask) if is_list(mask) else None), mask is not None
    valid = first_of(record, names.VALID)
    open_ = "" if valid is None or (np.size(valid) and np.all(valid)) else NOT_COMPUTED
    beside = max(0 if mask is None else len(mask), 0 if tokens is None else len(tokens.ids), length or 0)
    values, known = floats_of(value if is_list(value) else [value])
    if not is_list(value) or (len(values) == 1 != length and beside > 1):
        if length is None:
            length = int(mask.sum()) if mask is not None else len(tokens.ids) if tokens is not None else None
        return TokenRequest(values, known, is_total=True, length=length, open=open_, key=_key(record))
    count = len(values)
    if is_ragged and length is not None and count > length:  # of the whole sequence
        values, known, count = values[count - length :], last_of(known, length), length
    if is_masked and (mask is None or len(mask) < count):
        open_ = "the mask has fewer places than the log-probabilities"
    tokens, note = first_ids(lists, count)
    top = _top(record, count) if lists_of is None else lists_of
    if top is None and first_of(record, names.TOP_LOG_PROBS) is not None:
        note = note or "most likely tokens of another form than (positions, k) are left out"
    return TokenRequest(
        values,
        known,
        last_of(mask, count),
        None if tokens is None else last_of(tokens.ids, count),
        tokens is not None and tokens.are_texts,
        is_ragged=is_ragged,
        open=open_,
        key=_key(record),
        top=top,
        note=note,
        experts=last_of(experts_of(first_of(record, names.EXPERTS)), count),
    )


def has_lists(record: Mapping[str, Any], name: str) -> bool:
    """Return whether a record has a list of log-probabilities for each position: its ids are as many as the lists."""
    ids = first_of(record, names.IDS)
    return _is_batch(record[name]) and is_list(ids) and len(ids) == len(record[name]) and not is_list(ids[0])


def _sampled_of_lists(
    record: Mapping[str, Any], name: str, tokens: Optional[TokenIds]
) -> tuple[list[Any], Optional[TopLogProbs]]:
    """Return the log-probability of the sampled token of each position, null where its list lacks it, and the lists."""
    rows, ids = ([*record[key]] if is_list(record.get(key)) else [] for key in (name, names.IDS_OF_LISTS))
    if all(is_list(row) and len(row) == 1 for row in rows):
        return [row[0] for row in rows], None
    both = [[*zip(row, of_row)] if is_list(row) and is_list(of_row) else None for row, of_row in zip(rows, ids)]
    top = top_of_positions(both) if len(ids) == len(rows) else None
    if top is None or tokens is None or len(tokens.ids) != len(rows):
        raise ValueError(f"{name} has several numbers for a position, and no ids that say which was sampled")
    at = top.ids == tokens.ids[:, None]
    return [float(row[here][0]) if here.any() else None for row, here in zip(top.log_probs, at)], top


def _within(ranges: Any, count: int) -> list[int]:
    """Return a mask of so many places that counts those within ranges (start, end)."""
    found = [0] * count
    for pair in ranges:
        if not is_list(pair) or len(pair) != 2 or not all(isinstance(end, (int, np.integer)) for end in pair):
            raise ValueError(f"{names.RANGES} holds something else than [start, end]")
        for place in range(max(int(pair[0]), 0), min(int(pair[1]), count)):
            found[place] = 1
    return found


def _top(record: Mapping[str, Any], count: int) -> Optional[TopLogProbs]:
    """Return the most likely tokens of a record: arrays or lists (positions, k); None for others."""
    ids, found = first_of(record, names.TOP_IDS), first_of(record, names.TOP_LOG_PROBS)
    if not is_list(ids) or not is_list(found) or not len(ids) == len(found) >= count:
        return None
    if isinstance(ids, np.ndarray) and isinstance(found, np.ndarray):
        top = TopLogProbs(ids.astype(np.int64), found.astype(np.float64))
        return None if ids.ndim != 2 or ids.shape != found.shape else TopLogProbs(*(last_of(one, count) for one in top))
    rows = [[*zip(b, a)] if is_list(a) and is_list(b) else None for a, b in zip(ids, found)]
    return top_of_positions(rows[len(rows) - count :])


def token_count(value: Any) -> Optional[int]:
    """Return a recorded number of tokens; None for another value."""
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return int(value) if is_whole and 0 < value < MOST_TOKENS else None


def last_of(values: Any, count: int) -> Any:
    """Return the last `count` places of an array, those of the response; None for a shorter one."""
    return None if values is None or len(values) < count else values[len(values) - count :]


def _key(record: Mapping[str, Any]) -> str:
    value = first_of(record, names.KEYS)
    return str(value)[:200] if type(value) in (int, str) or isinstance(value, np.integer) else ""
