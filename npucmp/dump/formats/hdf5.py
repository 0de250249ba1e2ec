"""Read HDF5 files: dumps of PyTorch 1.5 for Ascend, and any other file of one dataset per tensor.

torch.utils.dumper of PyTorch 1.5 for Ascend, also built for GPU and CPU:

    /{OpName}/{seq}/{input|output}/{name}                    a tensor or a plain value
    /{OpName}/{seq}/{input|output}/{name}/{name}_{i}         an element of a list
        OpName   "batch_norm", "AddmmBackward"; seq counts the operators of the whole run
    attributes of a dataset
        Type         0 tensor; any other number: a plain value (integers, bool, double, scalar, sizes …)
        DataType     1 float, 2 byte, 3 char, 5 short, 6 int, 7 long, 9 bool, 10 half, 11 double
        DeviceType   0 CPU, 1 GPU, 10 NPU
        Stride       of the tensor in elements;  FormatType: ACL format on the device, not of these values

byte, char and bool are stored as int8, half as float32. The values are those of the tensor's storage from its start:
for a CPU tensor in any stride; for a GPU tensor, PyTorch keeps dense strides and makes others contiguous; for an NPU
tensor they are contiguous. Newer writers make all tensors contiguous and record that in Stride.
NPU, GPU and CPU name some operators and arguments differently; see _FAMILY, _KINDS and _RENAMED.

Any other file: a dataset is a tensor; its path ends with input/{n} or output/{n}, or with input_{n} or output_{n}, or
it is the only output of the operator of that name. The order is that of creation if the file keeps
it, else that of names.

Source: github.com/Ascend/pytorch, src/aten/src/ATen/utils/DumpUtils.cpp and LoadUtils.cpp; public behaviour of
msaccucmp; PyTorch 1.5 documentation of Tensor.cpu; docs/formats.md.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Iterator, Optional

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers import hdf5 as reader
from npucmp.dump.readers.folders import SNIFFED, labelled_folders
from npucmp.dump.readers.names import place_of, skipped_files_note, type_of_name
from npucmp.dump.readers.values import stored_values
from npucmp.errors import DumpError
from npucmp.model import Operator, Payload, Run, Scalar, TensorRef

NAME = "hdf5"
GRAPHS = None

_SUFFIXES = (".h5", ".hdf5")
_SEQUENCE = re.compile(r"[0-9]{1,18}")
_ROLES = ("input", "output")
_TENSORS = (0, 1)  # Type: TENSOR, and VEC_TENSOR for a list in one dataset
_VALUES = 64  # maximum elements of a plain value that are kept

_BYTES = {2: "uint8", 3: "int8", 9: "bool"}  # DataType of values stored as int8
_HALF = 10
_CPU, _GPU, _NPU = 0, 1, 10
_DEVICES = {_CPU: "CPU", _GPU: "GPU", _NPU: "NPU"}

_FAMILY = re.compile(r"(?:Npu|Cudnn|Thnn|Mkldnn)(?=[A-Z])|(?:npu|cudnn|thnn|mkldnn)_(?=.)")
_KINDS = {
    "ConvDepthwise2DBackward": "ConvolutionBackward",  # two kernels on the CPU are one convolution on the NPU
    "Conv2DBackward": "ConvolutionBackward",
    "NativeBatchNormBackward": "BatchNormBackward",
}
_RENAMED = {"ConvolutionBackward": {"input": "self"}, "BatchNormBackward": {"epsilon": "eps"}}
_DEVICE_SETTINGS = {"ConvolutionBackward": ("benchmark", "deterministic")}  # of cuDNN; an NPU has none

_ROLE = re.compile(r"(input|output)s?")
_SLOT = re.compile(r"(input|output)s?(?:[_.]?([0-9]{1,9}))?")


def sniff(path: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether a file has the signature of HDF5, or a folder holds one named .h5 or .hdf5.

    Files are searched in the folder itself and in folders below that name step, rank or process.
    """
    return any(reader.is_hdf5(str(file), context) for file in (_files(path, SNIFFED) if path.is_dir() else [path]))


def _files(path: Path, most: int = 0) -> Iterator[Path]:
    for folder in labelled_folders(path, _SUFFIXES, most):
        yield from (Path(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(_SUFFIXES))


def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
    """Return one Run per file. Raises DumpError if the only file is damaged, MissingExtra without h5py."""
    files = list(_files(path)) if path.is_dir() else [path]
    runs = [_open(files[0], context)] if len(files) == 1 else [_open_one_of_many(file, context) for file in files]
    others = {*os.listdir(path)} - {file.name for file in files} if path.is_dir() else ()
    note = skipped_files_note(path, sorted(others))
    return [replace(runs[0], notes=(*runs[0].notes, note)), *runs[1:]] if note else runs


def _open_one_of_many(file: Path, context: ReadContext) -> Run:
    try:
        return _open(file, context)
    except DumpError as error:
        return Run(str(file), NAME, (), _number(file, "step"), _number(file, "rank"), problem=str(error))


def _number(file: Path, word: str) -> Optional[int]:
    """Return a number from a file name such as "gpu_rank3.h5", else from its folders."""
    found = re.search(rf"(?:^|[^A-Za-z]){word}[_-]?([0-9]{{1,9}})(?![0-9])", file.stem)
    labels = place_of(file.absolute().parts[:-1])
    return int(found[1]) if found else labels.step if word == "step" else labels.rank


def labels(folder: str, name: str) -> tuple[Optional[int], Optional[int]]:
    """Return step and rank of a file, from its name, else from its folders."""
    file = Path(folder, name)
    return _number(file, "step"), _number(file, "rank")


def _open(path: Path, context: ReadContext) -> Run:
    found = reader.entries_of(str(path), context)
    dump = _HdfFiles(str(path), context)
    for entry in found.entries.values():
        dump.add(entry)
    operators, plain = _torch_operators(dump), _plain_operators(dump)
    for order, operator in enumerate(operators + plain):
        operator.order = order
    counted = len({int(number) for _, number in dump.calls}) == len(dump.calls)
    ordered = counted if not plain else found.tracked and not operators
    return Run(
        path=str(path),
        format=NAME,
        operators=tuple(operator.frozen() for operator in operators + plain),
        step=_number(path, "step"),
        rank=_number(path, "rank"),
        detail=_detail(dump, operators + plain),
        notes=_notes(found, bool(operators) and bool(plain), ordered, counted),
        ordered=ordered,
    )


def _detail(dump: _HdfFiles, operators: list[_Operator]) -> str:
    words = ["PyTorch 1.5" if dump.calls else "", *(_DEVICES.get(device, "") for device in sorted(dump.devices))]
    if operators and not any(operator.reads for operator in operators):
        words.append("outputs only")
    return " · ".join(word for word in words if word)


def _notes(found: reader.FileListing, beside: bool, ordered: bool, counted: bool) -> tuple[str, ...]:
    """`beside`: calls have datasets beside them. `counted`: no two calls have one number, so that the numbers count the
    operators of the whole run."""
    notes = []
    if not counted:
        notes.append("order: guessed, several operators have the same number; they are sorted by number and name")
    if beside:
        notes.append("datasets outside /{operator}/{number}/{input|output} follow the others")
    elif counted and not ordered:
        notes.append("the file does not record the order of creation; operators are sorted by name")
    if found.soft:
        notes.append(f"{found.soft} soft links were not followed")
    if found.again:
        notes.append(f"{found.again} additional names of groups were not followed")
    return tuple(notes)


@dataclass
class _Operator:
    """An operator while its datasets are collected."""

    name: str
    op_type: str
    kind: str = ""
    phase: str = ""
    unique: bool = True
    order: int = 0
    reads: bool = False
    tensors: list[TensorRef] = field(default_factory=list)
    arguments: dict[str, Scalar] = field(default_factory=dict)

    def frozen(self) -> Operator:
        return Operator(
            name=self.name,
            op_type=self.op_type,
            kind=self.kind or self.name,
            phase=self.phase,
            order=self.order,
            tensors=tuple(sorted(self.tensors, key=lambda tensor: not tensor.slot.startswith("input"))),
            arguments=self.arguments,
            unique=self.unique,
            call=self.name,  # unique, because the file does not record which forward a backward belongs to
            reads_recorded=self.reads,
        )


class _HdfFiles:
    """The content of a file: calls of PyTorch's operators by (OpName, seq), and other tensors by path."""

    def __init__(self, path: str, context: ReadContext) -> None:
        self._path, self._context = path, context
        self.calls: dict[tuple[str, str], _Operator] = {}
        self.others: list[tuple[tuple[str, ...], TensorRef]] = []
        self.devices: set[int] = set()

    def add(self, entry: reader.Entry) -> None:
        parts = entry.parts
        is_call = len(parts) >= 3 and _SEQUENCE.fullmatch(parts[1]) and parts[2] in _ROLES
        if is_call and not (len(parts) == 3 and entry.is_dataset):  # PyTorch's "input" is a group
            self._add_to_call(entry)
        elif entry.is_dataset or entry.problem:
            self.others.append((parts, self._tensor(entry, "")))

    def _add_to_call(self, entry: reader.Entry) -> None:
        name, sequence, role, *rest = entry.parts
        call = self.calls.setdefault((name, sequence), _Operator(name, name))
        if not entry.is_dataset and not entry.problem:
            return
        call.reads = call.reads or role == "input"
        slot = f"{role}:{'.'.join(rest)}" if rest else ""
        if not entry.is_dataset or _attribute(entry, "Type", 0) in _TENSORS:
            call.tensors.append(self._tensor(entry, slot))
        else:
            call.arguments[slot] = self._value(entry)

    def _tensor(self, entry: reader.Entry, slot: str) -> TensorRef:
        """Return a dataset as a tensor; an unreadable one has a problem."""
        label = entry.name
        try:
            payload, recorded = self._payload_of(entry, in_call=bool(slot))
        except DumpError as error:
            return TensorRef(slot, "", (), file=self._path, encoding=NAME, problem=error.because, label=label)
        dtype = "float16" if recorded == _HALF and payload.dtype == "float32" else payload.dtype
        return TensorRef(slot, dtype, payload.shape, file=self._path, encoding=NAME, label=label, payload=payload)

    def _payload_of(self, entry: reader.Entry, in_call: bool) -> tuple[Payload, int]:
        """Return the payload and DataType. Attributes of files without PyTorch's layout are ignored."""
        if not in_call:
            return reader.payload_at(entry), -1
        device = _attribute(entry, "DeviceType", -1)
        recorded = _attribute(entry, "DataType", -1)
        payload = reader.payload_at(entry, _BYTES.get(recorded, ""))
        strides = tuple(entry.attributes.get("Stride", ()))
        if strides and (device == _CPU or (device == _GPU and _is_dense(payload.shape, strides))):
            payload = reader.with_strides(payload, strides)
        self.devices.add(device)
        return payload, recorded

    def _value(self, entry: reader.Entry) -> Scalar:
        """Return a plain value: a number, a bool or a list; a description if it is too long or unreadable."""
        try:
            payload = reader.payload_at(entry)
            if math.prod(payload.shape) > _VALUES:
                return f"{math.prod(payload.shape)} values"
            value = stored_values(payload, self._context).tolist()
        except DumpError as error:
            return f"unreadable: {error.because}"
        return bool(value) if _attribute(entry, "Type", 0) == 4 and value in (0, 1) else value


def _attribute(entry: reader.Entry, name: str, default: int) -> int:
    """Return an integer attribute of a dataset; the default if it is missing or damaged."""
    found = entry.attributes.get(name, ())
    return found[0] if len(found) == 1 else default


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether each element has one place and no place is unused, as in a transposed tensor."""
    step = 1
    for stride, dim in sorted((stride, dim) for stride, dim in zip(strides, shape) if dim != 1):
        if stride != step:
            return False
        step *= dim
    return True


def _torch_operators(dump: _HdfFiles) -> list[_Operator]:
    """Return the calls in their order, each named with the count of earlier calls of its operator."""
    seen: Counter[str] = Counter()
    calls = sorted(dump.calls.items(), key=lambda item: (int(item[0][1]), item[0]))
    for (kind, _), call in calls:
        call.name = f"{kind}:{seen[kind]}"
        call.kind = family_kind(kind)
        call.phase = "backward" if kind.endswith("Backward") else "forward"
        call.unique = False
        _rename(call)
        seen[kind] += 1
    return [call for _, call in calls]


def family_kind(op_type: str) -> str:
    """Return the device-independent name of an operator: "ConvolutionBackward" for "NpuConvolutionBackward"."""
    kind = _FAMILY.sub("", op_type, count=1) if _FAMILY.match(op_type) else op_type
    return _KINDS.get(kind, kind)


def _rename(call: _Operator) -> None:
    """Rename slots to the spelling common to all devices, unless that name is taken."""
    taken = {tensor.slot for tensor in call.tensors} | set(call.arguments)
    names = {
        f"{role}:{one}": f"{role}:{other}"
        for one, other in _RENAMED.get(call.kind, {}).items()
        for role in _ROLES
        if f"{role}:{other}" not in taken
    }
    dropped = {f"input:{name}" for name in _DEVICE_SETTINGS.get(call.kind, ())}
    call.tensors = [tensor._replace(slot=names.get(tensor.slot, tensor.slot)) for tensor in call.tensors]
    arguments = {names.get(slot, slot): value for slot, value in call.arguments.items()}
    call.arguments = {slot: value for slot, value in arguments.items() if slot not in dropped}


def _plain_operators(dump: _HdfFiles) -> list[_Operator]:
    """Return the other datasets, grouped by operator, in the order of the first dataset of each operator."""
    operators: dict[str, _Operator] = {}
    for parts, tensor in dump.others:
        name, slot = split_name(parts)
        operator = operators.setdefault(name, _Operator(name, type_of_name(name)))
        operator.tensors.append(tensor._replace(slot=slot))
        operator.reads = operator.reads or slot.startswith("input")
    for operator in operators.values():
        operator.phase = "backward" if operator.name.endswith(("Backward", ".backward", "/backward")) else ""
    return list(operators.values())


def split_name(parts: tuple[str, ...]) -> tuple[str, str]:
    """Return operator and slot of a dataset's path."""
    role = _ROLE.fullmatch(parts[-2]) if len(parts) > 2 else None
    if role and re.fullmatch(r"[0-9]{1,9}", parts[-1]):
        return "/".join(parts[:-2]), f"{role[1]}:{int(parts[-1])}"
    found = _SLOT.fullmatch(parts[-1])
    if len(parts) > 1 and found:
        return "/".join(parts[:-1]), f"{found[1]}:{int(found[2] or 0)}"
    return "/".join(parts), "output:0"
