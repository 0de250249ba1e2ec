"""How long it takes to open dumps of many small files, of every format: makes N of each, opens them, prints seconds,
how often the first 4 KiB of each file could be read in that time, and the memory that each tensor costs.

hdf5 and monitor have one file for all, so that their ratio says nothing.

python tests/benchmarks/open_many.py [N] [FORMAT …]      not run by pytest
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from npucmp import open_runs
from tests.dump.formats.pt_files import pt_file
from tests.dump.formats.test_safetensors import packed
from tests.dump.readers import craft_cann as craft

X = np.zeros((16, 16), np.float32)
TIME = 1_767_225_600_000_000
HEAD = 4096


def copies(folder: Path, names: list[str], data: bytes) -> None:
    """The same bytes under each name."""
    for parent in {os.path.dirname(name) for name in names}:
        (folder / parent).mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(data)


def npy_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "x.npy"), X)
        return Path(folder, "x.npy").read_bytes()


def cann(folder: Path, number: int) -> None:
    tensor = craft.tensor(X, original=X.shape)
    for n in range(number):
        name = f"net/layer_{n}/MatMul"
        file = f"20231114221320/0/net/1/0/MatMul.{name.replace('/', '_')}.{n}.5.{craft.TIME + n}"
        copies(folder, [file], craft.v2([tensor, tensor], [tensor], name))


def msprobe(folder: Path, number: int) -> None:
    leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [16, 16], "Max": 1.0, "Min": 0.0, "Mean": 0.5,
            "Norm": 8.0}  # fmt: skip
    place = folder / "step0" / "rank0"
    copies(place, [f"dump_tensor_data/Torch.add.{n}.forward.output.0.pt" for n in range(number)], pt_file(X))
    data = {
        f"Torch.add.{n}.forward": {
            "input_args": [leaf], "input_kwargs": {},
            "output": [{**leaf, "data_name": f"Torch.add.{n}.forward.output.0.pt"}],
        }
        for n in range(number)
    }  # fmt: skip
    whole = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": data}
    (place / "dump.json").write_text(json.dumps(whole))


def mindspore(folder: Path, number: int) -> None:
    names = [f"rank_0/Net/0/0/Add.Default_Add-op{n}.0.0.{TIME + n}.output.0.ND.float32.npy" for n in range(number)]
    copies(folder, names, npy_bytes())


def raw(folder: Path, number: int) -> None:
    copies(folder, [f"Add.Default_Add-op{n}.0.0.{TIME + n}.output.0.ND.BF16" for n in range(number)], bytes(512))


def tfdbg(folder: Path, number: int) -> None:
    from tests.dump.formats.test_tfdbg import DEVICE, event

    data = event(1, X.shape, X.tobytes())
    copies(folder, [f"run_1_0/{DEVICE}/layer_{n}_0_DebugIdentity_{TIME + n}" for n in range(number)], data)


def hdf5(folder: Path, number: int) -> None:
    import h5py

    with h5py.File(folder / "d.h5", "w") as file:
        for n in range(number):
            file.create_dataset(f"layer_{n}/output", data=X)


def monitor(folder: Path, number: int) -> None:
    place = folder / "Nov22_19-23-13-rank0-1ace2694"
    place.mkdir()
    rows = (
        f'0,layer{n}.weight,0,-0.249382,0.249919,-0.001425,3.301201,0,"[32, 16]",torch.float32' for n in range(number)
    )
    text = "\n".join(["vpp_stage,name,step,min,max,mean,norm,nans,shape,dtype", *rows, ""])
    (place / "param_origin_0-1.csv").write_text(text)


def fx(folder: Path, number: int) -> None:
    place = "worldsize1_global_rank0/graph_1/0"
    names = [f"{place}/add_{n}-aten.add.Tensor.OUTPUT.0.20251017071211{n:06d}.npy" for n in range(number)]
    copies(folder, names, npy_bytes())


def atb(folder: Path, number: int) -> None:
    head = f"$Version=1.0\nformat=2\ndtype=0\ndims=16,16\n$Object.data=0,{X.nbytes}\n$End=1\n"
    names = [f"data/0_1/0/{n}_Op/after/outtensor0.bin" for n in range(number)]
    copies(folder, names, head.encode() + X.tobytes())


def saved(folder: Path, number: int) -> None:
    copies(folder, [f"step0/rank0/x{n}_float32_{n}.npy" for n in range(number)], npy_bytes())


def npy(folder: Path, number: int) -> None:
    copies(folder, [f"layer_{n}.0.{TIME + n}.npy" for n in range(number)], npy_bytes())


def pt(folder: Path, number: int) -> None:
    copies(folder, [f"step0/rank0/tensor_data/Aten.add.{n}.output.0.pt" for n in range(number)], pt_file(X))


def safetensors(folder: Path, number: int) -> None:
    for n in range(number):
        copies(folder, [f"part{n}.safetensors"], packed({f"layer.{n}": X}))


def npz(folder: Path, number: int) -> None:
    for n in range(number):
        np.savez(folder / f"part{n}.npz", **{f"layer.{n}": X})


MAKERS: dict[str, Callable[[Path, int], None]] = {
    one.__name__: one
    for one in (msprobe, cann, mindspore, raw, tfdbg, hdf5, monitor, fx, atb, saved, npy, pt, safetensors, npz)
}


def baseline(folder: str) -> float:
    """Seconds to list the files below a folder and to read the first bytes of each."""
    start = time.perf_counter()
    for where, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(where, name), "rb", buffering=0) as file:
                file.read(HEAD)
    return time.perf_counter() - start


def peak() -> float:
    """MiB of memory that this process has held since it was started."""
    with open("/proc/self/status") as status:  # what getrusage tells begins with that of the parent
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def opened(folder: str, name: str) -> None:
    """In a process of its own: prints what opening took."""
    plain = baseline(folder)
    with tempfile.TemporaryDirectory() as small:  # what is imported at the first use is nobody's memory
        MAKERS[name](Path(small), 3)
        open_runs(small)
    before, start = peak(), time.perf_counter()
    runs = open_runs(folder)
    seconds, tensors = time.perf_counter() - start, sum(run.tensors for run in runs)
    assert not any(tensor.problem for run in runs for one in run.operators for tensor in one.tensors)
    memory = (peak() - before) * 1024 / tensors
    print(
        f"{name:12} {tensors:6} tensors {seconds:6.2f} s, {seconds / plain:5.1f} times the heads; {memory:.1f} KiB each"
    )


def main() -> None:
    if sys.argv[1:2] == ["--open"]:
        opened(*sys.argv[2:])
        return
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    for name in sys.argv[2:] or MAKERS:
        folder = tempfile.mkdtemp()
        try:
            MAKERS[name](Path(folder), number)
            subprocess.run([sys.executable, __file__, "--open", folder, name], check=True)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
