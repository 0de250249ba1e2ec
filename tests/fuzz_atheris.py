"""A search led by coverage, with atheris: python -m tests.fuzz_atheris TARGET [FOLDER] [options of libFuzzer].

    pip install atheris
    python -m tests.fuzz_atheris npy /tmp/npy -max_total_time=300
    python -m tests.fuzz_atheris targets

The second line lists the targets. The search finds what tests/fuzz.py does not, as it keeps every input that reached a
new line; FOLDER keeps them for the next time. Whatever is raised but NpucmpError, takes longer than 20 seconds or more
than 2 GB at once ends it, and the input is written down; 8 GB in all, as the search itself takes more and more memory.
An input that found a defect becomes a file of tests/data/fuzz/TARGET, where it is a seed, and which
tests/test_fuzz_findings.py reads. No part of the normal suite.
"""

from __future__ import annotations

import os
import shutil
import struct
import sys
import tempfile
import warnings
import zipfile
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Callable, Union

import numpy as np

from tests import fuzz_targets

ROOT = Path(__file__).parent.parent
MOST = 1 << 15  # bytes of an input
DEVICE, TIME = "_tfdbg_device_,job_localhost,replica_0,task_0,device_CPU_0", 1795254505853561


def readers(folder: Path) -> dict[str, tuple[str, Callable[[str], object]]]:
    """By target: the place below the folder of the file that is spoilt, and what reads it or the dump around it."""
    from npucmp import open_runs
    from npucmp.dump.graphs import load_graphs
    from npucmp.dump.readers import fusion_result, header, overflow_records, statistics_csv
    from npucmp.dump.readers.inert_pickle import RefusedPickle
    from npucmp.dump.readers.inert_pickle import unpickle as load_pickle
    from npucmp.dump.readers.values import blocks
    from npucmp.measure.pairs import payload_of

    def values(path: str) -> None:
        for _ in blocks(header("torch_pt", path)):
            pass

    def array(path: str) -> None:
        """What is read is what numpy reads, unless it refuses the file for other blanks in the header."""
        found = list(blocks(header("npy", path), 1 << 20))
        whole = np.concatenate(found) if found else np.empty(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it has some for headers that Python 2 wrote
                known = np.load(path, max_header_size=1 << 20).reshape(-1)  # no pickles
        except ValueError as error:
            assert "parse header" in str(error)
            return
        assert known.astype(known.dtype.newbyteorder("=")).tobytes() == whole.tobytes()

    def pickle(path: str) -> None:
        try:
            load_pickle(Path(path).read_bytes())
        except RefusedPickle:
            pass

    def dump(_: str) -> None:
        for run in open_runs(folder):
            for operator in run.operators:
                for tensor in operator.tensors:
                    payload = payload_of(tensor)
                    if payload is not None:
                        for _ in blocks(payload):
                            pass

    return {
        **fuzz_targets.readers(folder),
        "npy": ("x.npy", array),
        "torch_pt": ("x.pt", values),
        "pickle": ("x.pkl", pickle),
        "cann_raw": ("Add.a.1.2.1763700000000000", dump),
        "cann_nano": ("Add.a.1.2.1763700000000000", dump),
        "cann_csv": ("Add.a.1.2.1763700000000000.csv", lambda path: statistics_csv.read_statistics(path)),
        "textproto": ("graph.pbtxt", lambda path: load_graphs(path)),
        "tfdbg": (f"run_1_0/{DEVICE}/a_0_DebugIdentity_{TIME}", dump),
        "opdebug": ("Opdebug.Node_OpDebug.1.2.1763700000000000", overflow_records.read_records),
        "opdebug_json": (
            "Opdebug.Node_OpDebug.1.2.1763700000000000.output.0.json",
            overflow_records.read_records,
        ),
        "mindspore_csv": ("rank_0/Net/0/0/statistic.csv", dump),
        "mindspore_ir": ("rank_0/graphs/ms_output_trace_code_graph_0.ir", dump),
        "dump_json": ("step0/rank0/dump.json", dump),
        "fusion_result": ("fusion_result.json", lambda path: fusion_result.read_effects(Path(path))),
        "mapping": ("mapping.csv", dump),
    }


def seeds() -> dict[str, list[Union[str, bytes]]]:
    """Small valid inputs by target: files of the repository and of the corpus beside it, or bytes."""
    from tests.dump.formats.test_tfdbg import event, floats
    from tests.dump.readers.craft_cann import EXAMPLE, as_ge, nano, tensor

    values = as_ge(tensor(np.ones((2, 3), np.float32)))

    return {
        **fuzz_targets.seeds(),
        "npy": ["sample_dumps/*/*/*.npy"],
        "torch_pt": ["tests/data/pt_files/*.pt"],
        "pickle": ["tests/data/pt_files/*.pt"],
        "cann_raw": ["sample_dumps/cann_clean/target/**/*.1763*", EXAMPLE],
        "cann_nano": ["../shared/data/cann/*nano*", nano([values], [values])],
        "cann_csv": [
            b"Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value\n"
            b"Input,0,8,DT_FLOAT,ND,2,1,0,0.5\n"
        ],
        "textproto": ["../shared/data/cann/*.txt", b'graph { name: "g" op { name: "a" type: "Add" input: "b:0" } }\n'],
        "tfdbg": [floats(1, 2), event(1, (2, 3), float_val=[0.5])],
        "opdebug": [b"ZZZZ" + bytes(4) + struct.pack("<4I", 1, 0, 0, 88) + bytes(88), bytes(2048)],
        "opdebug_json": [
            b'{"DHA Atomic Add": {"stream_id": 3, "task_id": 5, "status": 1}, '
            b'"AI Core": {"stream_id": 3, "task_id": 5, "status": "0x1"}}'
        ],
        "mindspore_csv": [
            b"Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value\n"
            b'Add,Default/a-op0,0,0,17,input,0,8,float32,"(2,)",1,0\n'
        ],
        "mindspore_ir": [
            b"  %0(out) = PrimFunc_Add(%p, Tensor(shape=[2], dtype=Float32, value=[1]), I64(-1))\n"
            b"      : (<Tensor[Float32], (2)>)\n"
            b"      # Fullname with scope: (Default/a-op0)\n"
            b"      # In file /n.py:13~15, 4~59/    def construct(self,x):/\n"
        ],
        "dump_json": ["tests/data/msprobe/**/dump.json"],
        "fusion_result": [
            b'{"graph_fusion": {"A": {"effect_times": "1", "match_times": "2"}}, "session_and_graph_id": "0_0"}'
        ],
        "mapping": [b"123,Add.a.1.2.1763700000000000\n"],
    }


def files_beside() -> dict[str, dict[str, bytes]]:
    """The files that a target needs beside its own, by their places."""
    from tests.dump.readers.craft_cann import EXAMPLE

    statistics = b"".join(map(bytes, seeds()["mindspore_csv"]))  # type: ignore[arg-type]
    return {
        **fuzz_targets.files_beside(),
        "mindspore_ir": {"rank_0/Net/0/0/statistic.csv": statistics},
        "tfdbg": {f"run_1_0/_tfdbg_core_metadata_sessionrun0_{TIME}": b""},
        "mapping": {"123": EXAMPLE},
    }


def inputs(target: str) -> list[bytes]:
    """Small valid files to begin with, and the inputs that found a defect."""
    given = [*seeds()[target], f"tests/data/fuzz/{target}/*"]
    files = [file for one in given if isinstance(one, str) for file in sorted(ROOT.glob(one)) if file.is_file()]
    found = [one for one in given if isinstance(one, bytes)] + [file.read_bytes() for file in files[:100]]
    if target == "pickle":
        archives = [zipfile.ZipFile(BytesIO(one)) for one in found if one.startswith(b"PK")]
        found = [one.read(name) for one in archives for name in one.namelist() if name.endswith("/data.pkl")]
    return [one for one in found if len(one) <= MOST]


def prepared(target: str, place: Path) -> tuple[Path, Callable[[str], object]]:
    """Return the file of a target in a folder, with the files beside it, and its reader."""
    name, read = readers(place)[target]
    for beside, data in files_beside().get(target, {}).items():
        (place / beside).parent.mkdir(parents=True, exist_ok=True)
        (place / beside).write_bytes(data)
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    return place / name, read


def main() -> None:
    target, *options = sys.argv[1:]
    if target == "targets":
        print("\n".join(readers(Path())))
        return
    import atheris

    with atheris.instrument_imports(include=["npucmp"]):
        import npucmp.dump.formats  # noqa: F401

        corpus = Path(options.pop(0) if options and not options[0].startswith("-") else tempfile.mkdtemp())
        place = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        file, read = prepared(target, place)
        corpus.mkdir(parents=True, exist_ok=True)
        for at, data in enumerate(inputs(target)):
            (corpus / f"seed{at}").write_bytes(data)
            file.write_bytes(data)
            with suppress(Exception):  # what is imported late is instrumented too; the search reads it again
                read(str(file))
    from npucmp.errors import NpucmpError

    warnings.simplefilter("error")
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT)

    def one(data: bytes) -> None:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, data, 0)
        try:
            read(str(file))
        except NpucmpError as error:
            assert "\n" not in str(error)

    words = [
        sys.argv[0],
        str(corpus),
        f"-max_len={MOST}",
        "-timeout=20",
        "-malloc_limit_mb=2048",
        "-rss_limit_mb=8192",
        *options,
    ]
    atheris.Setup(words, one)
    try:
        atheris.Fuzz()
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
