"""Further targets of tests/fuzz_atheris.py: archives, checkpoints, tables, logs, graphs, reports.

HDF5 is no target: the library runs in a process of its own, which takes 0.3 s for each input. tests/fuzz.py damages its
files.
"""

from __future__ import annotations

import json
import struct
import zipfile
from functools import cache
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Callable, Iterable, Mapping, Union

import numpy as np

Reader = Callable[[str], object]
EVENT = b"\x09" + bytes(8) + b"\x10\x03\x2a\x0d\x0a\x0b\x0a\x04loss\x15" + struct.pack("<f", 2.5)


def readers(folder: Path) -> dict[str, tuple[str, Reader]]:
    """By target: the place below the folder of the file that is spoilt, and what reads it or the dump around it."""
    from npucmp import open_runs
    from npucmp.comparability.config_check_zip import read_setup
    from npucmp.dump.graphs import load_graphs
    from npucmp.dump.limits import ANYWHERE
    from npucmp.dump.log_probs import read_recordings
    from npucmp.dump.readers import atb, safetensors, stored_zip, torch_pt
    from npucmp.dump.readers.distributed_checkpoint import distributed_tensors
    from npucmp.dump.readers.safe_open import open_regular
    from npucmp.dump.readers.values import blocks
    from npucmp.health.curves.log_reader import read_log
    from npucmp.measure.pairs import payload_of
    from npucmp.workflows import report_reader

    def entries(read: Callable[..., Mapping[str, object]]) -> Reader:
        def call(path: str) -> None:
            with open_regular(path) as file:
                found = read(file)
            exhaust(blocks(one) for one in found.values() if not isinstance(one, str))

        return call

    def tensor(path: str) -> None:
        with open_regular(path) as file:
            found = atb.read_atb(file)
        if found.payload:
            exhaust([blocks(found.payload)])

    def checkpoint(_: str) -> None:
        for _name, one in distributed_tensors(str(folder), ANYWHERE):
            if not one.problem and (payload := payload_of(one)) is not None:
                exhaust([blocks(payload)])

    def dump(_: str) -> None:
        for run in open_runs(folder):
            assert all(operator.name for operator in run.operators)

    def recordings(path: str) -> None:
        read_recordings(path, ("rollout", "trainer"), ANYWHERE)

    return {
        "npz": ("x.npz", entries(stored_zip.entries)),
        "pt_entries": ("x.pt", entries(torch_pt.entries)),
        "safetensors": ("x.safetensors", entries(safetensors.entries)),
        "checkpoint": (".metadata", checkpoint),
        "atb": ("x.bin", tensor),
        "atb_csv": ("statistic.csv", lambda path: atb.rows(Path(path), [])),
        "monitor_csv": ("Nov22_19-23-13-rank0-1ace2694/param_origin_0-1.csv", dump),
        "construct": ("step0/rank0/construct.json", dump),
        "stack": ("step0/rank0/stack.json", dump),
        "graph_pb": ("graph.pb", load_graphs),
        "graph_json": ("ge_proto_1.json", load_graphs),
        "log_probs": ("x.jsonl", recordings),
        "log_probs_npz": ("x.npz", recordings),
        "log_probs_pt": ("x.pt", recordings),
        "curve_text": ("train.log", read_log),
        "curve_events": ("events.out.tfevents.1", read_log),
        "config_check": ("config.zip", read_setup),
        "report_summary": ("summary.json", lambda _: report_reader.read(folder)),
        "report_tensors": ("tensors.csv", lambda _: report_reader.read(folder)),
        "report_roots": ("roots.csv", lambda _: report_reader.read(folder)),
    }


def exhaust(every: Iterable[Iterable[object]]) -> None:
    for one in every:
        for _ in one:
            pass


def seeds() -> dict[str, list[Union[str, bytes]]]:
    """Small valid inputs by target: files of the repository, or bytes."""
    from tests.dump.formats.test_atb import HEADER, content
    from tests.dump.formats.test_monitor import TABLES

    row = "0_39943,0,Prefill_layer/Linear,Linear,2_0,input,0_x,float,nd,2x3,1.0,0.0,0.5,1.2,N/A\n"
    probs = {"prompt_ids": [1, 2], "response_ids": [3, 4], "rollout_log_probs": [-0.5, -1.5], "step": 1}
    tables: dict[str, list[Union[str, bytes]]] = {"monitor_csv": [text.encode() for text in TABLES.values()]}
    return {
        **tables,
        "npz": [_npz(x=np.arange(6, dtype=np.float32).reshape(2, 3), y=np.zeros((), np.int64))],
        "pt_entries": ["tests/data/pt_files/*.pt"],
        "safetensors": [_safetensors()],
        "checkpoint": [_metadata()],
        "atb": [content(np.arange(6, dtype=np.float32).reshape(2, 3)), content(np.zeros(2, np.int8), data="x")],
        "atb_csv": [(HEADER + row).encode()],
        "construct": [b'{"Functional.relu.0.forward": "Module.a.A.forward.0", "Module.a.A.forward.0": null}'],
        "stack": [b'{"0": [["Functional.relu.0.forward"], ["File /n.py, line 3, in f, \\n relu(x)"]]}'],
        "graph_pb": [b"\x0a\x0d\x0a\x01a\x12\x03Add\x1a\x03b:0"],
        "graph_json": [b'{"graph": [{"name": "g", "op": [{"name": "a", "type": "Add", "input": ["b:0"]}]}]}'],
        "log_probs": [json.dumps(probs).encode(), b"\n".join([json.dumps(probs).encode()] * 2)],
        "log_probs_npz": [_npz(rollout_log_probs=np.full((2, 3), -0.5), responses=np.ones((2, 3), np.int64))],
        "log_probs_pt": [_log_probs_pt()],
        "curve_text": [
            b" iteration 12/ 500 | lm loss: 2.310000E+00 | grad norm: 1.23 |\n",
            b"{'loss': 2.31, 'grad_norm': 1.2, 'epoch': 0.5}\n",
            b'{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.5}\n',
            b"step,loss\n1,2.0\n2,1.5\n",
        ],
        "curve_events": [struct.pack("<Q", len(EVENT)) + bytes(4) + EVENT + bytes(4)],
        "config_check": [_config_zip(), b"torch==2.1.0\nnumpy==1.26\n"],
        **{f"report_{name}": [data] for name, data in _report().items()},
    }


def files_beside() -> dict[str, dict[str, bytes]]:
    """The files that a target needs beside its own, by their places."""
    report = {f"{name}.json" if name == "summary" else f"{name}.csv": data for name, data in _report().items()}
    relu = {"input_args": [], "input_kwargs": {}, "output": [{"type": "int", "value": 1}]}
    dump = json.dumps({"task": "tensor", "data": {"Functional.relu.0.forward": relu}}).encode()
    return {
        **{f"report_{name}": report for name in ("summary", "tensors", "roots")},
        **{name: {"step0/rank0/dump.json": dump} for name in ("construct", "stack")},
        "checkpoint": {"__0_0.distcp": bytes(64)},
    }


def _npz(**arrays: np.ndarray) -> bytes:  # type: ignore[type-arg]
    made = BytesIO()
    np.savez(made, **arrays)  # type: ignore[arg-type]
    return made.getvalue()


def _safetensors() -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


def _metadata() -> bytes:
    from tests.corpus.weights.files import Stored, distributed

    with TemporaryDirectory() as folder:
        name = "layers.weight"
        distributed(Path(folder), {name: [((0, 0), Stored(np.ones((2, 3), np.float32)))]}, {name: (2, 3)})
        return Path(folder, ".metadata").read_bytes()


def _log_probs_pt() -> bytes:
    from tests.corpus.weights.files import Stored, torch_save

    with TemporaryDirectory() as folder:
        torch_save(Path(folder, "x.pt"), {"rollout_log_probs": Stored(np.full((2, 3), -0.5, np.float32))})
        return Path(folder, "x.pt").read_bytes()


def _config_zip() -> bytes:
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("pip", "torch==2.1.0\n")
        archive.writestr("env", json.dumps({"HCCL_DETERMINISTIC": "1"}))
        archive.writestr("weights/0/0.json", json.dumps({"a": {"max": 1, "min": 0, "mean": 0.5, "norm": 1}}))
    return made.getvalue()


@cache
def _report() -> dict[str, bytes]:
    """The summary and two tables of a report."""
    from npucmp import compare, write_reports
    from tests.synthetic import chain, write_run

    with TemporaryDirectory() as folder:
        sides = [
            write_run(Path(folder, f"side{at}"), chain(faults, steps=2)) for at, faults in enumerate(({1: 2.0}, ()))
        ]
        write_reports(compare(*sides, jobs=1), folder)
        names = {"summary": "summary.json", "tensors": "tensors.csv", "roots": "roots.csv"}
        return {name: Path(folder, file).read_bytes() for name, file in names.items()}
