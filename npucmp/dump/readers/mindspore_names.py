"""Parse MindSpore's names of tensors: in file names and in the rows of statistic.csv.

    {type}.{name}.{task}.{stream}.{microseconds}[.{kind}.{context}.{thread}.{device}].{input|output}.{n}{tail}.npy
    {type}.{name}.{task}.{microseconds}.{input|output}.{n}.npy     of the first releases of CANN
    {tail} is .{format}, .{format}.{dtype}, .{A}x{B}x{C} (converted raw dumps) or nothing
    the time may be empty; without .npy, or with .bin: only the bytes, of types and formats that NPY lacks

{name} is the full name ("Default/network-Net/fc-Dense/MatMul-op0") with "_" for "/", in older versions its last part.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

from npucmp.dump.readers.cann_enums import from_name
from npucmp.dump.readers.name_rules import BESIDE
from npucmp.model import DeviceTask
from npucmp.model.dtypes import canonical, lookup

PARAMETER = "Parameter"
LONGEST = 4096

_NAME = re.compile(
    r"(?P<type>[^.]+)\.(?P<op>[^.]+)\.(?P<numbers>[0-9]{1,20}(?:\.[0-9]{1,20}){1,6}|[0-9]{1,20}\.[0-9]{1,20}\.)"
    r"\.(?P<role>input|output)\.(?P<number>[0-9]{1,9})(?P<tail>(?:\.[^.]+)*)\.npy"
)
_NUMBERED = re.compile(r"-op[0-9]+$")


class MindsporeName(NamedTuple):
    """The tensor and the execution that a name identifies. `layout` and `dtype` are the dump's words, "" if absent."""

    op_type: str
    op_name: str
    role: str
    number: int
    time: int
    layout: str = ""
    dtype: str = ""
    task: DeviceTask = DeviceTask(-1)

    @property
    def is_parameter(self) -> bool:
        """Return whether the tensor is a weight or an input of the network, which no kernel wrote."""
        return self.op_type == PARAMETER

    @property
    def slot(self) -> str:
        return f"{'input' if self.is_parameter else self.role}:{self.number}"

    @property
    def key(self) -> tuple[str, str, int]:
        """The key shared by all executions of the operator."""
        return self.op_name, self.role, self.number


def parse_mindspore_name(name: str) -> Optional[MindsporeName]:
    """Parse a file name; None if it is not of this format."""
    match = _NAME.fullmatch(name) if len(name) <= LONGEST else None
    if match is None:
        return None
    numbers = [int(number or 0) for number in match["numbers"].split(".")]
    streamless = len(numbers) == 2
    if streamless and numbers[1] < 10**9:  # too small for a time, so it is an index
        return None
    task, stream, time = (numbers[0], -1, numbers[1]) if streamless else numbers[:3]
    sliced = numbers[4:6] if len(numbers) == 7 else ()
    layout, dtype = [*match["tail"].split("."), "", ""][1:3]
    return MindsporeName(
        match["type"], match["op"], match["role"], int(match["number"]), time, layout, dtype,
        DeviceTask(task, stream, *sliced),
    )  # fmt: skip


def parse_raw_name(name: str) -> Optional[MindsporeName]:
    """Parse the name of a tensor that was written as bytes: such a name without .npy, or with .bin."""
    stem = name[: -len(".bin")] if name.endswith(".bin") else name
    return None if name.endswith((".npy", *BESIDE)) else parse_mindspore_name(f"{stem}.npy")


def kind(op_name: str) -> str:
    """Return a name without the number that distinguishes kernels of its scope and type."""
    return _NUMBERED.sub("", op_name)


def computed_in(word: str, stored: str) -> str:
    """Return the type used in the computation, if NPY lacks it and the file holds a wider float; else the file's."""
    named, held = lookup(canonical(from_name(word))), lookup(stored)
    if named and held and named.kind == held.kind == "f" and named.round_off > held.round_off:
        return named.name
    return stored
