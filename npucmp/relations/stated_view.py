"""The language of views: how recorded tensors of the target make a tensor of the golden, as the column `relation` of
tensors.csv prints it and `--mapping` reads it back.

    permute(0,3,1,2)                  the axes of the target in the order of the golden
    reshape(2,16,64)                  the same values in another shape, in C order
    slice(axis 2, 32-63)              the places 32 to 63 along an axis; several ranges one behind the other
    scale(2)                          the values of the target are twice the golden's
    matmul(left, Q.npy)               a matrix of a file times the tensor; matmul(right, Q.npy): the tensor times it
    NAME(…)                           a function that the entry point group npucmp.views names, of an array and the text
    concat(ranks 0-3, axis 2), shard(…), grouped(…), zigzag(…), replica(…), sum(…), mean(…), max(…), norm(…)
                                      what the ranks hold (model/relation.py)
    tokens(…), blocks(…), rows(…)     rows that npucmp finds by their values: the statement changes nothing

Steps stand in the order in which they are applied, separated by " · " or ";". Steps that join ranks come last; only
scale may follow them.
"""

from __future__ import annotations

import math
import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Callable, Iterable, NamedTuple, Optional

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers import assembly, header_of
from npucmp.dump.readers.computed_weights import FUNCTION, PRODUCT, VIEWS, called_view
from npucmp.dump.readers.safe_open import open_regular
from npucmp.errors import UnsupportedError, UsageError
from npucmp.model import Payload
from npucmp.model.entry_points import find_extensions

OF_RANKS = frozenset("concat shard grouped zigzag replica sum mean max norm".split())
FOUND = frozenset("tokens blocks rows".split())  # by values alone
_STEP = re.compile(r"([A-Za-z_][\w.-]*)\s*\(([^()]*)\)")
_SEPARATOR = re.compile(r"\s*[·;]\s*")


class ViewStep(NamedTuple):
    """A step of a view: its name, and its arguments as text."""

    name: str
    arguments: str

    @property
    def words(self) -> str:
        return f"{self.name}({self.arguments})"


class View(NamedTuple):
    """The steps of a view. `of_tensor` are those of the tensor of one rank, `of_ranks` those that join ranks."""

    steps: tuple[ViewStep, ...]

    @property
    def of_tensor(self) -> tuple[ViewStep, ...]:
        return tuple(step for step in self.steps if step.name not in OF_RANKS and step.name not in FOUND)

    @property
    def of_ranks(self) -> str:
        """The steps that join ranks, in words; "" without any."""
        return " · ".join(step.words for step in self.steps if step.name in OF_RANKS)

    @property
    def words(self) -> str:
        return " · ".join(step.words for step in self.steps)


def parse_view(text: str) -> View:
    """Return the view that a text states. Raises UsageError for an unknown step or argument."""
    steps: list[ViewStep] = []
    for word in _SEPARATOR.split(text.strip()):
        found = _STEP.fullmatch(word)
        if found is None:
            raise UsageError(f"{word!r:.100} is no view; for example: permute(0,3,1,2), concat(ranks 0-3, axis 2)")
        step = ViewStep(found[1], _spaced(found[1], found[2]))
        if step.name not in (*OF_RANKS, *FOUND, "scale") and any(known.name in OF_RANKS for known in steps):
            raise UsageError(f"{step.words:.100} stands behind a step that joins ranks; state it before that step")
        if step.name in _STEPS:
            _STEPS[step.name][0](step.arguments)  # raises for wrong arguments
        elif step.name == "matmul":
            _matrix(step.arguments)
        elif step.name not in KNOWN and step.name not in (views := find_extensions(VIEWS)):
            raise UsageError(f"no view {step.name!r:.60}; known: {', '.join(sorted((*KNOWN, *views)))}")
        steps.append(step)
    return View(tuple(steps))


def viewed(payload: Payload, view: View, folder: str, context: ReadContext) -> Payload:
    """Return the payload of a tensor as the view of it that is stated; steps that join ranks are left out. Files are
    relative to `folder`. Raises UnsupportedError if a step does not fit its shape, DumpError for an unreadable file."""
    for step in view.of_tensor:
        if step.name in _STEPS:
            read, apply = _STEPS[step.name]
            payload = apply(payload, read(step.arguments))
        elif step.name == "matmul":
            payload = _matmul(payload, step.arguments, folder, context)
        else:
            payload = _called(payload, step)
    return payload


def _spaced(name: str, arguments: str) -> str:
    """The arguments as npucmp prints them: numbers side by side, "ranks" in the plural."""
    if name in ("permute", "reshape"):
        return re.sub(r"\s+", "", arguments)
    words = re.sub(r"\brank\b", "ranks", " ".join(arguments.split()))
    return re.sub(r"(?<=[^\d\s]),\s*|,\s+", ", ", words) if name in OF_RANKS else words


def _numbers(arguments: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", arguments):
        raise UsageError(f"({arguments:.100}): numbers with commas are wanted")
    return tuple(map(int, arguments.split(",")))


def _places(arguments: str) -> tuple[int, list[tuple[int, int]]]:
    found = re.fullmatch(r"axis (\d+), ?(\d+-\d+(?:,\d+-\d+)*)", arguments)
    if found is None:
        raise UsageError(f"slice({arguments:.100}): slice(axis 2, 32-63) is wanted")
    ranges = (one.split("-") for one in found[2].split(","))
    return int(found[1]), [(int(first), int(last) + 1) for first, last in ranges]


def _factor(arguments: str) -> float:
    try:
        factor = float(arguments)
    except ValueError:
        factor = 0.0
    if not factor or not math.isfinite(factor):
        raise UsageError(f"scale({arguments:.100}): a number other than 0 is wanted")
    return factor


def _matrix(arguments: str) -> tuple[str, str]:
    side, _, name = arguments.partition(", ")
    if side not in ("left", "right") or not name:
        raise UsageError(f"matmul({arguments:.100}): matmul(left, FILE.npy) or matmul(right, FILE.npy) is wanted")
    return side, name


def _permuted(payload: Payload, axes: tuple[int, ...]) -> Payload:
    if sorted(axes) != [*range(len(payload.shape))]:
        raise UnsupportedError(f"permute({','.join(map(str, axes))}) of a tensor of {len(payload.shape)} axes")
    return assembly.permuted(payload, axes)


def _in_shape(payload: Payload, shape: tuple[int, ...]) -> Payload:
    if math.prod(shape) != math.prod(payload.shape):
        raise UnsupportedError(f"reshape({','.join(map(str, shape))}) of {math.prod(payload.shape)} elements")
    return assembly.reshaped(payload, shape)


def _sliced(payload: Payload, places: tuple[int, list[tuple[int, int]]]) -> Payload:
    axis, ranges = places
    for start, stop in ranges:
        if axis >= len(payload.shape) or not start < stop <= payload.shape[axis]:
            raise UnsupportedError(f"slice(axis {axis}, {start}-{stop - 1}) of shape {[*payload.shape]}")
    return assembly.joined([assembly.sliced(payload, axis, *one) for one in ranges], axis)


def _divided(payload: Payload, factor: float) -> Payload:
    return assembly.total([payload], factor=1.0 / factor)


_STEPS: dict[str, tuple[Callable[[str], Any], Callable[[Payload, Any], Payload]]] = {  # reads arguments, applies them
    "permute": (_numbers, _permuted),
    "reshape": (_numbers, _in_shape),
    "slice": (_places, _sliced),
    "scale": (_factor, _divided),
}
KNOWN = frozenset((*_STEPS, *OF_RANKS, *FOUND, "matmul"))


def _matmul(payload: Payload, arguments: str, folder: str, context: ReadContext) -> Payload:
    """The product with the matrix of a .npy file, of all rows of the last axis, or from the left of a matrix."""
    side, name = _matrix(arguments)
    if folder and (os.path.isabs(name) or os.pardir in Path(name).parts):
        raise UnsupportedError(f"matmul with {name:.100}, which is not in the folder of the mapping")
    with open_regular(os.path.join(folder, name), context) as file:
        matrix = header_of("npy", file)
    if len(matrix.shape) != 2 or not payload.shape:  # a matrix and a tensor
        raise UnsupportedError(f"matmul with {name} of shape {[*matrix.shape]}")
    rows = (math.prod(payload.shape[:-1]), payload.shape[-1])
    if side == "right":
        shape, parts = (*payload.shape[:-1], matrix.shape[1]), (assembly.reshaped(payload, rows), matrix)
    else:
        shape, parts = (matrix.shape[0], *payload.shape[1:]), (matrix, payload)
    if parts[0].shape[1] != parts[1].shape[0] or len(parts[1].shape) != 2:
        raise UnsupportedError(f"matmul({side}, {name}) of shapes {[*payload.shape]} and {[*matrix.shape]}")
    made = Payload("", "float32", (parts[0].shape[0], parts[1].shape[1]), 0, parts=parts, made_by=PRODUCT)
    return assembly.reshaped(made, shape)


def _called(payload: Payload, step: ViewStep) -> Payload:
    """The result of a function of a tensor, in the shape that it has for as many zeros."""

    shape = called_view(step.words, np.zeros(payload.shape, np.float32)).shape
    return Payload("", "float32", shape, 0, parts=(payload,), made_by=FUNCTION, dataset=step.words)


def placed_words(words: str) -> str:
    """The steps of a relation in words that join ranks, as `View.of_ranks` has them."""
    return View(tuple(ViewStep(*found.groups()) for found in _STEP.finditer(words))).of_ranks


def matching_pattern(patterns: Iterable[str], name: str, slot: str) -> Optional[str]:
    """The first pattern that matches "operator slot", or the operator alone; None without one."""
    return next((one for one in patterns if fnmatchcase(f"{name} {slot}", one) or fnmatchcase(name, one)), None)
