"""The content of a dump: tensors, operators, runs; and the call that a record describes (the function, its arguments,
and its tensors by slot). Values of tensors are never in memory here, only their place in a file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator, Mapping, NamedTuple, Optional, Union

from npucmp.model.dtypes import lookup

if TYPE_CHECKING:
    from npucmp.model.relation import TensorRelation

_DIGITS = re.compile("[0-9a-fA-F]+")
Scalar = Any  # a non-tensor argument as the dump spells it: number, text, bool, None


class RankGroup(tuple[int, ...]):
    """An argument that is a group of ranks, by their global numbers."""


def position(index: int, shape: tuple[int, ...]) -> str:
    """The position of element number `index` (in C order) of a tensor by axis: "[1, 1, 0, 2]"."""
    places: list[int] = []
    for size in reversed(shape):
        index, at = divmod(index, max(1, size))
        places.append(at)
    return str(places[::-1])


class Device(NamedTuple):
    """A device's memory layout of a tensor, if it is not the C order of the logical shape.

    layout  name of layouts.py ("NC1HWC0", "FRACTAL_NZ"); shape the stored shape, padding included
    origin  order of the logical axes ("NHWC", "NCHW", "ND"); groups the group count of a grouped FRACTAL_Z
    """

    layout: str
    shape: tuple[int, ...]
    origin: str = ""
    groups: int = 1


class Payload(NamedTuple):
    """The place of the values of one tensor in a file, from its header.

    `shape` is the logical shape, in which the values are read. `shape` and `strides` count elements, `offset` bytes
    from the start of the file to the first element. `strides` is empty for a C-contiguous tensor. `byteorder` is "<" or
    ">". `device` is set if the stored order is a device's own. A tensor that was computed in slices has `parts`, to be
    joined along `axis` of their stored shapes. A tensor that several ranks hold is `made_by` joining its `parts` along
    `axis`, by their sum times `factor`, by their largest elements, or by reshaping (dump/readers/assembly.py); a weight
    by a scale, a product of two matrices or a transposition (dump/readers/computed_weights.py).
    `dataset` names an HDF5 dataset that is not contiguous. `unshaped` values have no shape in any file: `shape` is
    their number.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...] = ()
    byteorder: str = "<"
    device: Optional[Device] = None
    parts: tuple[Payload, ...] = ()
    axis: int = 0
    dataset: str = ""
    unshaped: bool = False
    made_by: str = ""
    factor: float = 1.0


class Statistics(NamedTuple):
    """Recorded statistics of a tensor without payload; None for a value that was not recorded. `norm` is the L2
    norm."""

    max: Optional[float] = None
    min: Optional[float] = None
    mean: Optional[float] = None
    norm: Optional[float] = None

    @classmethod
    def recorded(
        cls, max: Optional[float], min: Optional[float], mean: Optional[float], norm: Optional[float]
    ) -> Statistics:
        """Statistics as a dump records them: msprobe writes the value of a 0-d tensor for all four, with its sign."""
        return cls(max, min, mean, -norm if norm is not None and norm < 0 else norm)


class NeedsFigures(TypeError):
    """A question about the statistics of a tensor that ranks share: each rank has its own."""


class FiguresAt:
    """The place of a tensor's statistics among the figures of each rank, in the structure that ranks share
    (model/network.py). A question about the statistics themselves raises NeedsFigures."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def _refuse(self, *_: object) -> Any:
        raise NeedsFigures

    __bool__ = __eq__ = __iter__ = __getitem__ = __len__ = __repr__ = _refuse
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def __reduce__(self) -> tuple[Any, ...]:
        return FiguresAt, (self.number,)


class TensorRef(NamedTuple):
    """One tensor of a dump: its properties and its place in a file, never its values.

    slot      "input:0", "output:1", "param:weight", "grad:weight"; "" if the header is unreadable
    dtype     canonical name of dtypes.py, or the dump's own word for one that is not in that table
    shape     logical shape; () is 0-d
    file      payload file, "" if the dump kept none; `encoding` names the reader ("torch_pt", "npy")
    checksum  recorded checksum in the dump's own spelling, "" if none; "0x…" is an XOR, other hexadecimal digits a
              hash
    layout    a device's layout of the stored values ("NC1HWC0"), "" for plain C order
    problem   the reason why this tensor is known to be unreadable without opening it, "" if it is not
    label     the dump's own name of the tensor, for reports
    payload   the place of the values, if it is known without opening the file again
    source    of an input: the tensor of the same run that it reads, "{operator}:{output index}", "" if unknown
    origin    the corresponding tensor of the unfused network, in the same notation
    stored    of an input: it is in the graph, a weight into which the compiler may have folded other weights
    rounding  largest rounding error of `statistics`, which the dump rounded to some decimals
    trainable whether the tensor requires a gradient, by the dump; None if unknown
    own_slot  the slot in its own dump if the alignment moved it to its partner's slot, "" otherwise
    relation  how ranks hold it, if it was put together from several; the order of axes or the slice in which it is
              compared; None otherwise
    """

    slot: str
    dtype: str
    shape: tuple[int, ...]
    file: str = ""
    encoding: str = ""
    statistics: Optional[Statistics] = None
    checksum: str = ""
    layout: str = ""
    problem: str = ""
    label: str = ""
    payload: Optional[Payload] = None
    source: str = ""
    origin: str = ""
    stored: bool = False
    rounding: float = 0.0
    trainable: Optional[bool] = None
    own_slot: str = ""
    relation: Optional[TensorRelation] = None

    def in_slot(self, slot: str) -> TensorRef:
        """The same tensor in the slot of its partner."""
        return self._replace(slot=slot, own_slot=self.own_slot or self.slot)

    @property
    def is_output(self) -> bool:
        return self.slot.startswith(("output", "grad")) or not self.slot

    @property
    def has_xor(self) -> bool:
        """Whether the recorded checksum is an XOR of words, which proves a difference but never equality: every
        constant with an even number of words has the XOR 0, and any order of the words gives the same XOR."""
        return self.checksum[:2] in ("0x", "0X")

    @property
    def digest(self) -> str:
        """The recorded checksum if it is a hash, for which equality proves equal values; else ""."""
        return self.checksum.lower() if _DIGITS.fullmatch(self.checksum) else ""

    @property
    def has_sums(self) -> Optional[bool]:
        """Whether Mean or Norm was recorded for a float tensor besides Max and Min. None for other tensors: 0-d
        tensors, and types for which msprobe records no sums (float64, complex numbers, integers)."""
        recorded, row = self.statistics, lookup(self.dtype)
        if recorded is None or recorded.max is None or not self.shape or row is None or row.kind != "f":
            return None
        return None if row.itemsize > 4 else recorded.mean is not None or recorded.norm is not None

    @property
    def identity(self) -> str:
        """The checksum that identifies a tensor in its own run. "" without one, and for an XOR that a constant or a
        mask can have: its pieces of 8, 16 or 32 bits are all zero or one number."""
        if not self.has_xor:
            return self.checksum
        digits = f"{self.checksum[2:].lower():0>16}"
        for size in (2, 4, 8):
            pieces = {digits[at : at + size] for at in range(0, len(digits), size)}
            if len(pieces - {"0" * size}) < 2:
                return ""
        return self.checksum

    @property
    def device(self) -> Optional[Device]:
        """The device layout of the values; None for plain order, or if it is unknown."""
        return self.payload.device if self.payload is not None else None

    @property
    def is_unshaped(self) -> bool:
        """Whether `shape` is only the number of elements."""
        return self.payload is not None and self.payload.unshaped

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return self.device.shape if self.device is not None else self.shape


class DeviceTask(NamedTuple):
    """One execution on a device; -1 for a number that the dump does not contain. context and thread are those of a
    slice."""

    task: int
    stream: int = -1
    context: int = -1
    thread: int = -1


class Operator(NamedTuple):
    """One executed operator.

    name       the dump's name
    op_type    the computation ("softmax", "Linear"), without index, phase or path
    kind       name without call index, which is stable when calls are inserted before it
    phase      "forward", "backward" or ""
    order      position in the execution order of its run, from 0
    scope      name of the operator record of the module that contains it, "" if the dump does not contain it
    path       of a module: its path in the model ("Module.encoder.layers.0"), "" for other operators
    arguments  its non-tensor arguments by slot ("input:4" → 1e-12)
    stack      call stack, innermost frame first, as the dump spells it
    unique     False if the name has a call index, which shifts when a call is inserted
    originals  operators of the unfused network that it computes, by its graph
    inserted   the graph compiler added it; it has no operator of the network
    passes     fusion passes that made it
    own_name   the name in its own dump if it was put together from operators of several ranks, "" otherwise
    tasks      the device's numbers of its execution, by which overflow records identify it
    attributes settings of its computation from its graph: by the graph's names, constant inputs by slot ("input:1")
    """

    name: str
    op_type: str
    kind: str
    phase: str
    order: int
    tensors: tuple[TensorRef, ...]
    scope: str = ""
    path: str = ""
    arguments: Mapping[str, Scalar] = {}
    stack: tuple[str, ...] = ()
    unique: bool = True
    call: str = ""  # forward and backward of one call share this text
    reads_recorded: bool = True  # whether the dump records the inputs, even if there are none
    originals: tuple[str, ...] = ()
    inserted: bool = False
    passes: tuple[str, ...] = ()
    tasks: tuple[DeviceTask, ...] = ()
    attributes: Mapping[str, Any] = {}
    own_name: str = ""

    def __repr__(self) -> str:
        return f"<{self.name[:200]!r}, order {self.order}, {len(self.tensors)} tensors>"


class RunHeader(NamedTuple):
    """The identity of one run of a dump before it is read: the dump, its format, step and rank, and the run's own
    path."""

    dump: str
    format: str
    step: Optional[int]
    rank: Optional[int]
    path: str


@dataclass(frozen=True, repr=False)
class Run:
    """One rank and step of a dump. `detail` and `notes` are words for the reader of a report.

    `ordered` is False if the dump does not record the order of execution. `problem` is the reason why a run cannot be
    read (it then has no operators), "" if it can. `records` are files in which the device recorded overflows.
    """

    path: str
    format: str
    operators: tuple[Operator, ...]
    step: Optional[int] = None
    rank: Optional[int] = None
    detail: str = ""
    notes: tuple[str, ...] = ()
    ordered: bool = True
    problem: str = ""
    records: tuple[str, ...] = ()

    def __repr__(self) -> str:
        what = f"step {self.step}, rank {self.rank}, {len(self.operators)} operators"
        return f"<{self.format} run {self.path[-200:]!r}, {what}>"

    @property
    def tensors(self) -> int:
        """The number of tensors that were dumped: inputs that a graph adds to a dump of outputs are outputs again."""
        return sum(1 for _ in self.dumped())

    def dumped(self) -> Iterator[TensorRef]:
        """Yield the tensors that were dumped."""
        outputs = "outputs only" in self.detail
        for operator in self.operators:
            yield from (tensor for tensor in operator.tensors if tensor.is_output or not (outputs and tensor.source))


class Slot(NamedTuple):
    """An argument or result that is a tensor: the operator's tensor in this slot."""

    name: str


class SpelledArgument(NamedTuple):
    """A non-tensor argument: its type and value as the dump spells them ("float" 1e-05, "slice" [0, None, 1])."""

    kind: str
    value: Any


Tree = Union[Slot, SpelledArgument, None, "list[Any]", "dict[str, Any]"]  # None if the record has null


class Call(NamedTuple):
    """One recorded call.

    prefix, name  the namespace and name of the function ("Functional", "softmax"), without the number of the call
    args, kwargs  of a forward record; a backward record has the gradients that reached its outputs
    outputs       the results; of a backward record the gradients that it returned
    """

    prefix: str
    name: str
    args: tuple[Tree, ...] = ()
    kwargs: Mapping[str, Tree] = {}  # a plain dict, so that it can be pickled; nothing writes to it
    outputs: tuple[Tree, ...] = ()
