"""What is the same in two clean runs, and which operators are right to name for a strike."""

from __future__ import annotations

from typing import Any, Iterable, NamedTuple, Sequence

import numpy as np

from tests.corpus.frameworks.dumps import recorded, slots
from tests.corpus.frameworks.tape import Call

SAME, NEAR = (
    1e-4,
    1e-2,
)  # chosen: differences of sorted values, relative to their norm: rounding; neither the same nor another
LEAST = 1e-3  # chosen: the least relative error by which a strike shows in a tensor that both sides have
MASKED = -5e3  # chosen: values below it are masked scores


def key(operator: str, slot: str) -> str:
    """Return the name of a tensor of a dump, in any format's spelling of the operator."""
    return f"{operator.replace('/', '_')}|{slot}"


def is_informative(array: np.ndarray) -> bool:
    """Return whether a tensor's values prove which tensor it is: 8 floats or more, of more than 6 values."""
    return bool(array.dtype.kind == "f" and array.size >= 8 and len(np.unique(np.clip(array, MASKED, None))) > 6)


class Content:
    """All tensors of a run with the same values in any order."""

    def __init__(self, number: int, array: np.ndarray) -> None:
        self.number, self.array = number, array
        self.sorted = np.sort(np.clip(array.ravel(), MASKED, None).astype(np.float64))
        self.makers: list[str] = []
        self.readers: list[str] = []

    def difference(self, other: np.ndarray) -> float:
        norm = float(np.linalg.norm(other)) or 1.0
        return float(np.linalg.norm(self.sorted - other)) / norm


class Side:
    """The contents of one clean run in one format.

    keys: every informative tensor's name → number of its content. reads, writes: operator → numbers.
    """

    def __init__(self, calls: Sequence[Call], format: str, sources: Any = None) -> None:
        self.contents: list[Content] = []
        self.keys: dict[str, int] = {}
        self.reads: dict[str, list[int]] = {}
        self.writes: dict[str, list[int]] = {}
        by_bytes: dict[bytes, int] = {}
        for call in recorded(calls, format):
            self.reads[call.name], self.writes[call.name] = [], []
            shown = {slot for slot, _ in slots(call, format)}
            for slot, array in slots(call, "slots" if format == "graph" else format):
                if not is_informative(array):
                    continue
                number = self._number(array, by_bytes)
                if slot in shown:
                    self.keys[key(call.name, slot)] = number
                (self.writes if slot.startswith("output") else self.reads)[call.name].append(number)
        for name in self.reads:
            for number in self.reads[name]:
                self.contents[number].readers.append(name)
            for number in self.writes[name]:
                self.contents[number].makers.append(name)

    def _number(self, array: np.ndarray, by_bytes: dict[bytes, int]) -> int:
        content = Content(len(self.contents), array)
        found = by_bytes.setdefault(content.sorted.tobytes(), content.number)
        if found == content.number:
            self.contents.append(content)
        return found

    def shown(self) -> set[int]:
        return set(self.keys.values())


class Truth(NamedTuple):
    """same: pairs (target's, golden's content) of equal values; near: pairs that are neither right nor wrong;
    parts: pairs of which one is a slice of the other."""

    target: dict[str, int]
    golden: dict[str, int]
    same: list[tuple[int, int]]
    near: list[tuple[int, int]]
    parts: list[tuple[int, int]]


def truth(target: Side, golden: Side) -> Truth:
    same, near, parts = [], [], []
    for one in target.contents:
        for other in golden.contents:
            sizes = sorted((one.sorted.size, other.sorted.size))
            if sizes[0] == sizes[1]:
                difference = one.difference(other.sorted)
                if difference <= SAME:
                    same.append((one.number, other.number))
                elif difference <= NEAR:
                    near.append((one.number, other.number))
            elif sizes[1] % sizes[0] == 0 and sizes[1] // sizes[0] <= 8:
                small, large = (one, other) if one.sorted.size < other.sorted.size else (other, one)
                if any(small.difference(part) <= SAME for part in _parts(large.array, sizes[1] // sizes[0])):
                    parts.append((one.number, other.number))
    shown = target.shown(), golden.shown()
    kept = [[(a, b) for a, b in some if a in shown[0] and b in shown[1]] for some in (same, near, parts)]
    return Truth(target.keys, golden.keys, *kept)


def _parts(array: np.ndarray, count: int) -> Iterable[np.ndarray]:
    for axis, size in enumerate(array.shape):
        if size % count == 0:
            for part in np.split(array, count, axis):
                yield np.sort(np.clip(part.ravel(), MASKED, None).astype(np.float64))


def right_names(
    operator: str,
    target: Side,
    golden: Side,
    found: Truth,
    struck: Sequence[Call],
    clean: Sequence[Call],
    by_figures: bool = False,
) -> list[str]:
    """Return the names that are right for a strike at a target's operator; none if no tensor of both sides shows it.

    Right are the operator, the ways from it to the first contents that the golden has too, the golden's makers of
    these, and golden operators inside what the target has fused or otherwise decomposed. `by_figures`: statistics alone
    are recorded, and a content shows a strike only if its statistics change: exchanged rows show later.
    """
    errors = _errors(target, struck, clean, by_figures)
    partner: dict[int, list[int]] = {}
    for a, b in found.same:
        partner.setdefault(a, []).append(b)
    names, edge, open_, seen = {operator}, set[int](), list(target.writes[operator]), set[int]()
    while open_:
        number = open_.pop()
        if number in seen:
            continue
        seen.add(number)
        if number in partner and (not by_figures or errors.get(number, 0.0) >= LEAST):
            edge.add(number)
            names.update(name for name in target.contents[number].makers if _is_behind(target, name, seen))
            continue
        for name in target.contents[number].readers:
            names.add(name)
            open_ += target.writes[name]
    if not any(errors.get(number, 0.0) >= LEAST for number in edge):
        return []
    paired = {b for _, b in found.same}
    backwards = [b for number in edge for b in partner[number]]
    gone: set[int] = set()
    while backwards:
        number = backwards.pop()
        if number in gone:
            continue
        gone.add(number)
        for name in golden.contents[number].makers:
            names.add(name)
            backwards += [one for one in golden.reads[name] if one not in paired and golden.contents[one].makers]
    return sorted(name.replace("/", "_") for name in names)


def _is_behind(target: Side, name: str, seen: set[int]) -> bool:
    return bool(set(target.writes[name]) & seen)


def _errors(target: Side, struck: Sequence[Call], clean: Sequence[Call], by_figures: bool) -> dict[int, float]:
    """Return content → its largest relative error behind the strike, of its values or of its statistics."""
    found: dict[int, float] = {}
    for one, other in zip(struck, clean):
        for numbers, pairs in ((target.writes.get(one.name, []), zip(one.outputs, other.outputs)),):
            informative = [(a, b) for a, b in pairs if is_informative(b)]
            for number, (a, b) in zip(numbers, informative):
                a, b = (np.clip(x.astype(np.float64), MASKED, None) for x in (a, b))
                if by_figures:
                    a, b = map(_figures, (a, b))
                error = float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1.0))
                found[number] = max(found.get(number, 0.0), error)
    return found


def _figures(array: np.ndarray) -> np.ndarray:
    return np.array([array.max(), array.min(), array.mean(), np.sqrt((array * array).mean())])
