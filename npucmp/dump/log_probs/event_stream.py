"""Server-sent events of streamed answers, "data: {…}" a line, as the answers of which they are parts.

The interface of OpenAI sends each token once. SGLang's own interface sends all tokens so far in each event, or with
incremental_streaming_output those of the event. Source: protocols of vLLM and SGLang.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_FIELDS = ("data:", "event:", "id:", "retry:", ":")
_DONE = "[DONE]"
_DEPTH = 4  # objects within objects: {"choices": [{"logprobs": {"content": …}}]} has 3


def is_stream(text: str) -> bool:
    """Return whether a text is of server-sent events."""
    return text.lstrip().startswith(_FIELDS)


def event_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the JSON text of each event."""
    for number, line in enumerate(text.split("\n"), 1):
        data = line.strip()[len("data:") :].strip() if line.strip().startswith("data:") else ""
        if data and data != _DONE:
            yield number, data


def joined_events(events: Iterable[Any]) -> list[Any]:
    """Return the answers of which events are parts, by their identity and the index of a choice, in order."""
    answers: dict[tuple[str, str], dict[str, Any]] = {}
    for event in events:
        if not isinstance(event, Mapping):
            continue
        choices = event.get("choices")
        rest = {key: value for key, value in event.items() if key != "choices"}
        if not isinstance(choices, list):
            _join(answers.setdefault((_identity(event), str(event.get("index", 0))), {}), rest)
            continue
        for choice in choices:
            if isinstance(choice, Mapping):
                known = answers.setdefault((_identity(event), str(choice.get("index", 0))), {"choices": [{}]})
                _join(known, rest)
                _join(known.setdefault("choices", [{}])[0], choice)
    return [*answers.values()]


def _identity(event: Mapping[str, Any]) -> str:
    meta = event.get("meta_info")
    return str(event.get("id") or (meta.get("id") if isinstance(meta, Mapping) else None) or "")


def _join(known: dict[str, Any], part: Mapping[str, Any], depth: int = 0) -> None:
    """Add the values of an event to those of the events before: lists follow, other values replace."""
    sends_all = _sends_all(known, part)
    for key, value in part.items():
        before = known.get(key)
        if isinstance(value, Mapping) and depth < _DEPTH:
            if not isinstance(before, dict):
                before = known[key] = {}
            _join(before, value, depth + 1)
        elif isinstance(value, list) and isinstance(before, list) and not sends_all:
            before.extend(value)
        elif isinstance(value, list):
            known[key] = [*value]
        elif value is not None or key not in known:
            known[key] = value


def _sends_all(known: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    """Return whether an event has all tokens so far: as many as it counts, else those before and more."""
    rows = part.get("output_token_logprobs")
    before = known.get("output_token_logprobs")
    if not isinstance(rows, list) or not isinstance(before, list):
        return False
    count = part.get("completion_tokens")
    if isinstance(count, int) and count != len(before) + len(rows):
        return count == len(rows)
    return count is None and rows[: len(before)] == before
