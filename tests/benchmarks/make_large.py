"""Makes two msprobe dumps to measure speed with: a golden run, and a target that differs from it by rounding.

python tests/benchmarks/make_large.py FOLDER [--megabytes 2500] [--dtype float32] [--encoding pt] [--nonfinite]
python tests/benchmarks/make_large.py FOLDER --pairs 10000 [--elements 1024]

FOLDER/golden and FOLDER/target get step0/rank0/dump.json and dump_tensor_data/*, as PrecisionDebugger writes them
with level L1, task tensor; the tensors have the sizes of a BERT (batch 8, 256 tokens, hidden size 768), layer after
layer until a side has so many megabytes. No torch. Not run by pytest.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import zlib
from pathlib import Path
from typing import Any, Iterator

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.dump.readers import craft

Array = NDArray[Any]

TORCH = {"float32": "FloatStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage", "float64": "DoubleStorage"}
ROUNDING = {"float32": 2.0**-22, "float16": 2.0**-9, "bfloat16": 2.0**-7, "float64": 2.0**-51}
BATCH, TOKENS, HIDDEN, HEADS = 8, 256, 768, 12
PERIOD = (1 << 20) + 7  # random numbers are made once and used again from another place: making them takes longest

STATES = (BATCH, TOKENS, HIDDEN)
SCORES = (BATCH, HEADS, TOKENS, TOKENS)
WIDE = (BATCH, TOKENS, 4 * HIDDEN)
LAYER = (  # operator, shapes of its inputs, shape of its output
    ("linear", (STATES, (HIDDEN, HIDDEN), (HIDDEN,)), STATES),
    ("linear", (STATES, (HIDDEN, HIDDEN), (HIDDEN,)), STATES),
    ("linear", (STATES, (HIDDEN, HIDDEN), (HIDDEN,)), STATES),
    ("softmax", (SCORES,), SCORES),
    ("dropout", (SCORES,), SCORES),
    ("linear", (STATES, (HIDDEN, HIDDEN), (HIDDEN,)), STATES),
    ("layer_norm", (STATES, (HIDDEN,), (HIDDEN,)), STATES),
    ("linear", (STATES, (4 * HIDDEN, HIDDEN), (4 * HIDDEN,)), WIDE),
    ("gelu", (WIDE,), WIDE),
    ("linear", (WIDE, (HIDDEN, 4 * HIDDEN), (HIDDEN,)), STATES),
    ("layer_norm", (STATES, (HIDDEN,), (HIDDEN,)), STATES),
)

Operator = "tuple[str, tuple[tuple[int, ...], ...], tuple[int, ...]]"


def bert(size: int, itemsize: int) -> Iterator[Operator]:
    """Layers until their tensors have so many bytes."""
    done = 0
    while True:
        for operator in LAYER:
            yield operator
            done += sum(int(np.prod(shape)) for shape in (*operator[1], operator[2])) * itemsize
            if done >= size:
                return


def small(pairs: int, elements: int) -> Iterator[Operator]:
    for _ in range(pairs // 2):
        yield "relu", ((elements,),), (elements,)


class Values:
    """Tensors of a golden run, the same for the same seed, and of a target that rounds otherwise."""

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
        random = np.random.default_rng(0)
        plain = random.normal(size=PERIOD)
        noise = plain * (1 + ROUNDING[dtype] * random.integers(-1, 2, PERIOD))
        both = {"golden": plain.astype(self.dtype), "target": noise.astype(self.dtype)}
        self.sides = {side: np.concatenate([values, values]) for side, values in both.items()}

    def of(self, side: str, shape: tuple[int, ...], seed: int) -> Array:
        count, start = int(np.prod(shape)), seed * 4099 % PERIOD
        return np.resize(self.sides[side][start : start + min(count, PERIOD)], count)


def pt(values: Array, shape: tuple[int, ...]) -> list[bytes | memoryview]:
    """A file of torch.save in pieces: its storage is not copied."""
    strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    store = craft.storage(f"torch {TORCH[values.dtype.name]}", count=values.size)
    body = craft.program(craft.tensor(craft.integers(*shape), craft.integers(*strides), store))
    data = memoryview(values).cast("B") if values.dtype.kind == "f" else memoryview(values.view(np.uint16)).cast("B")
    members: list[tuple[str, bytes | memoryview]] = [  # all seven, as torch and msprobe want them
        ("t/data.pkl", body),
        ("t/.format_version", b"1"),
        ("t/.storage_alignment", b"64"),
        ("t/byteorder", b"little"),
        ("t/data/0", data),
        ("t/version", b"3\n"),
        ("t/.data/serialization_id", b"0" * 40),
    ]
    made: list[bytes | memoryview] = []
    directory, at = [], 0
    for name, content in members:
        said = (0, 0, 0, 0, 0, zlib.crc32(content), len(content), len(content), len(name))
        fill = -(at + 30 + len(name)) % 64 if name.endswith("/0") else 0
        if 0 < fill < 4:
            fill += 64
        extra = struct.pack("<2H", 0x4246, fill - 4) + bytes(fill - 4) if fill else b""
        local = b"PK\3\4" + struct.pack("<5H3I2H", *said, len(extra)) + name.encode() + extra
        directory.append(b"PK\1\2" + struct.pack("<6H3I5H2I", 0, *said, *(0,) * 5, at) + name.encode())
        made += [local, content]
        at += len(local) + len(content)
    central = b"".join(directory)
    end = b"PK\5\6" + struct.pack("<4H2IH", 0, 0, len(members), len(members), len(central), at, 0)
    return [*made, central, end]


def npy(values: Array, shape: tuple[int, ...]) -> list[bytes | memoryview]:
    text = f"{{'descr': '{values.dtype.str}', 'fortran_order': False, 'shape': {shape!r}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    head = b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text.encode()
    return [head, memoryview(values).cast("B")]


def write(folder: Path, side: str, operators: list[Operator], values: Values, given: argparse.Namespace) -> int:
    """One run; returns the bytes of its tensors."""
    here = folder / side / "step0" / "rank0"
    (here / "dump_tensor_data").mkdir(parents=True)
    data, calls = {}, {}
    seed = written = 0
    for kind, inputs, output in operators:
        number = calls[kind] = calls.get(kind, -1) + 1
        name = f"Functional.{kind}.{number}.forward"
        leaves = []
        for place, shape in (*((f"input.{n}", shape) for n, shape in enumerate(inputs)), ("output.0", output)):
            seed += 1
            tensor = values.of(side, shape, seed)
            if given.nonfinite and side == "target":
                tensor[:: 1 << 10] = np.nan
            file = f"{name}.{place}.{given.encoding}"
            with open(here / "dump_tensor_data" / file, "wb") as stream:
                for piece in (pt if given.encoding == "pt" else npy)(tensor, shape):
                    stream.write(piece)
            some = tensor[:1000].astype(np.float64)
            statistics = {
                "Max": some.max(),
                "Min": some.min(),
                "Mean": some.mean(),
                "Norm": float(np.sqrt(some @ some)),
            }
            leaf = {"type": "torch.Tensor", "dtype": f"torch.{given.dtype}", "shape": list(shape), **statistics}
            leaves.append({**leaf, "requires_grad": False, "data_name": file})
            written += tensor.nbytes
        data[name] = {"input_args": leaves[:-1], "input_kwargs": {}, "output": leaves[-1:]}
    place = str((here / "dump_tensor_data").resolve())
    top = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": place, "data": data}
    (here / "dump.json").write_text(json.dumps(top, indent=1))
    (here / "stack.json").write_text(
        json.dumps({"0": [list(data), ["File model.py, line 1, in forward, \n x = f(x)"]]})
    )
    (here / "construct.json").write_text("{}")
    return written


def make(folder: Path, given: argparse.Namespace) -> int:
    """Both runs; returns the bytes of a side."""
    values = Values(given.dtype)
    if given.pairs:
        operators = list(small(given.pairs, given.elements))
    else:
        operators = list(bert(given.megabytes * 10**6, values.dtype.itemsize))
    return max(write(folder, side, operators, values, given) for side in ("golden", "target"))


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Makes two msprobe dumps to measure speed with.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=int, default=2500, help="of a side")
    parser.add_argument("--dtype", choices=sorted(TORCH), default="float32")
    parser.add_argument("--encoding", choices=("pt", "npy"), default="pt")
    parser.add_argument("--pairs", type=int, default=0, help="so many small pairs instead of a BERT")
    parser.add_argument("--elements", type=int, default=1024, help="of a small tensor")
    parser.add_argument("--nonfinite", action="store_true", help="a NaN in every 1024 elements of the target")
    return parser


def main() -> None:
    given = options().parse_args()
    print(f"{make(given.folder, given) / 1e6:.0f} MB a side below {given.folder}")


if __name__ == "__main__":
    main()
