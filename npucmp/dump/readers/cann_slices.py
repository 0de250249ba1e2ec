"""Join operators that FFTS+ cut into slices: find the files that belong together, and the axis to join them along.

The first attribute of such a dump is a JSON text:
    threadMode                                0 slices are operators of their own (…_lxslice{n}), 1 one file per thread
    slice_instance_num                        number of slices
    outputCutList                             [output][dimension] → number of cuts; the axis is the one other than 1
    input_tensor_slice, output_tensor_slice   [slice][tensor][dimension] → {"lower": …, "higher": …}
Source: public sources of msaccucmp.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, Optional, Sequence

from npucmp.dump.readers.cann_enums import RawTensor

_SLICE = re.compile(r"_lxslice(\d{1,9})")
_PREFIX = re.compile(r"^.*sgt_graph_\d+[_/]")  # "/" in the unescaped name


class SliceFile(NamedTuple):
    """The JSON of one file; `parsed` is {} if it cannot be read."""

    parsed: dict[str, Any]

    @property
    def slices(self) -> int:
        """The number of slices that the device made; 0 if unknown."""
        number = self.parsed.get("slice_instance_num")
        return number if isinstance(number, int) else 0

    def axis(self, role: str, index: int) -> Optional[int]:
        """Return the axis along which tensor `index` of its role is cut; -1 if it is not cut, None if unknown."""
        if role == "output":
            cut = _at(self.parsed.get("outputCutList"), index)
            if isinstance(cut, list) and cut:
                return next((axis for axis, pieces in enumerate(cut) if pieces != 1), -1)
        table = self.parsed.get(f"{role}_tensor_slice")
        if not isinstance(table, list) or not table:
            return None
        ranges = [_at(slices, index) for slices in table]
        if not all(isinstance(one, list) and len(one) == len(ranges[0]) for one in ranges):
            return None
        differing = [axis for axis in range(len(ranges[0])) if any(one[axis] != ranges[0][axis] for one in ranges)]
        return differing[0] if differing else -1


def _at(values: Any, index: int) -> Any:
    return values[index] if isinstance(values, list) and index < len(values) else None


def cuts(attributes: Sequence[tuple[str, str]]) -> Optional[SliceFile]:
    """Return the cuts in a dump's attributes; None if the dump is not a slice."""
    for _, text in attributes[:1]:
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if isinstance(parsed, dict) and "threadMode" in parsed:
            return SliceFile(parsed)
    return None


def whole_name(name: str) -> tuple[str, int]:
    """Return (name of the operator that a slice belongs to, number of the slice or -1)."""
    match = _SLICE.search(name)
    return _PREFIX.sub("", _SLICE.sub("", name)), int(match[1]) if match else -1


def join(parts: Sequence[RawTensor], axis: Optional[int], slices: int) -> RawTensor:
    """Return one tensor of the joined stored shape, with a problem if slices do not fit together or are missing."""
    first = parts[0]
    if axis == -1 or slices == 1:
        return first
    missing = f"only {len(parts)} of {slices} slices contain it" if len(parts) < slices else ""
    problem = next((part.problem for part in parts if part.problem), missing)
    if axis is None:
        problem = problem or f"computed in {len(parts)} slices, and the dump does not record the positions of the cuts"
        return first._replace(problem=problem)
    others = {part.shape[:axis] + part.shape[axis + 1 :] for part in parts}
    if axis >= len(first.shape) or len(others) > 1 or len({part.dtype for part in parts}) > 1:
        shapes = ", ".join(str(list(part.shape)) for part in parts[:4])
        return first._replace(problem=problem or f"slices that do not fit together along axis {axis}: {shapes}")
    shape = (*first.shape[:axis], sum(part.shape[axis] for part in parts), *first.shape[axis + 1 :])
    return first._replace(shape=shape, problem=problem)
