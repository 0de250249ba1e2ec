"""Further targets of tests/fuzz_atheris.py: archives, checkpoints, HDF5, tables, logs, graphs, settings, reports.

A command reads HDF5 in a process of its own, which a crash of the library may end; this search has no such process, as
one takes 0.3 s for each input. If the library crashes, the input tells nothing of npucmp.
"""

from __future__ import annotations

import json
import struct
import zipfile
from functools import cache
from io import BytesIO
from pathlib import Path
from pprint import pformat
from tempfile import TemporaryDirectory
from typing import Callable, Iterable, Mapping, Union

import numpy as np

Reader = Callable[[str], object]
EVENT = b"\x09" + bytes(8) + b"\x10\x03\x2a\x0d\x0a\x0b\x0a\x04loss\x15" + struct.pack("<f", 2.5)


def readers(folder: Path) -> dict[str, tuple[str, Reader]]:
    """By target: the place below the folder of the file that is spoilt, and what reads it or the dump around it."""
    from npucmp import merge, open_runs, ticket, write_reports
    from npucmp.align import mapping
    from npucmp.comparability.config_check_zip import read_setup
    from npucmp.comparability.config_file import read_config
    from npucmp.dump.graphs import load_graphs
    from npucmp.dump.limits import ANYWHERE
    from npucmp.dump.log_probs import read_recordings
    from npucmp.dump.readers import atb, hdf5, safetensors, stored_zip, torch_pt
    from npucmp.dump.readers.checkpoint_files import open_checkpoint
    from npucmp.dump.readers.distributed_checkpoint import distributed_tensors
    from npucmp.dump.readers.safe_open import open_regular
    from npucmp.dump.readers.values import blocks
    from npucmp.health.curves.log_reader import read_log
    from npucmp.health.rules import RULES
    from npucmp.health.settings import load_settings
    from npucmp.judge.tolerance import load_noise, load_tolerances
    from npucmp.measure.pairs import payload_of
    from npucmp.relations.weights.structure import structure_of
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

    def datasets(path: str) -> None:
        isolated, hdf5.ISOLATED = hdf5.ISOLATED, False
        hdf5._listing.cache_clear()  # two inputs of one size may have one time
        try:
            for one in hdf5.entries_of(path).entries.values():
                if one.is_dataset and not one.problem:
                    exhaust([blocks(hdf5.payload_at(one))])
        finally:
            hdf5.ISOLATED = isolated

    def structure(_: str) -> None:
        found = open_checkpoint(folder)
        assert found is not None
        structure_of(found, "target")

    def dump(_: str) -> None:
        for run in open_runs(folder):
            assert all(operator.name for operator in run.operators)

    def merged(_: str) -> None:
        write_reports(merge([folder, folder / "other"]), folder / "merged")

    def recordings(path: str) -> None:
        read_recordings(path, ("rollout", "trainer"), ANYWHERE)

    return {
        "npz": ("x.npz", entries(stored_zip.entries)),
        "pt_entries": ("x.pt", entries(torch_pt.entries)),
        "safetensors": ("x.safetensors", entries(safetensors.entries)),
        "hdf5": ("x.h5", datasets),
        "checkpoint": (".metadata", checkpoint),
        "checkpoint_config": ("config.json", structure),
        "checkpoint_index": ("model.safetensors.index.json", structure),
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
        "config_log": ("train.log", read_config),
        "config_yaml": ("train.yaml", read_config),
        "names_yaml": ("names.yaml", lambda path: mapping.load(Path(path))),
        "rules_toml": ("rules.toml", lambda path: load_settings(path, RULES)),
        "tolerances": ("tolerances.csv", lambda path: load_tolerances(Path(path))),
        "noise": ("noise.csv", lambda path: load_noise(Path(path))),
        "report_summary": ("summary.json", lambda _: report_reader.read(folder)),
        "report_tensors": ("tensors.csv", lambda _: report_reader.read(folder)),
        "report_roots": ("roots.csv", lambda _: report_reader.read(folder)),
        "merge": ("tensors.csv", merged),
        "ticket": ("roots.csv", lambda _: ticket(folder, redact=True)),
    }


def exhaust(every: Iterable[Iterable[object]]) -> None:
    for one in every:
        for _ in one:
            pass


def seeds() -> dict[str, list[Union[str, bytes]]]:
    """Small valid inputs by target: files of the repository, or bytes."""
    from tests.comparability import test_logged_config as logged
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
        "hdf5": [_hdf5(), _hdf5(chunks=(2, 2), compression="gzip", shuffle=True, fletcher32=True)],
        "checkpoint": [_metadata()],
        "checkpoint_config": [
            b'{"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64, "vocab_size": 8}',
            b'{"r": 8, "lora_alpha": 16, "use_rslora": true, "quantization_config": {"weight_block_size": [2, 2]}}',
        ],
        "checkpoint_index": [b'{"metadata": {"total_size": 8}, "weight_map": {"a": "model.safetensors"}}'],
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
        "config_log": [
            logged.table({"lr": 3e-4, "seed": 1234, "bf16": True, "data_path": ["/x"]}).encode(),
            pformat({"actor": {"lr": 1e-06, "betas": (0.9, 0.999), "note": "it's {odd} [text"}}).encode(),
            logged.TRANSFORMERS.encode(),
            b"python train.py --lr 3e-4 --seed=7 --name 'a b'\n",
        ],
        "config_yaml": [b"lr: 3.0e-4\nmodel:\n  layers: 2\n  names: [a, 'b']\n"],
        "names_yaml": [
            b"Functional.relu.0.forward: ReLU.0\n",
            b"A:\n  x: y\nB:\n  z: w\n",
            b"ms_api: mint.add\npt_api: torch.add\nms_args: [input, other]\npt_args: [input, other]\n",
        ],
        "rules_toml": [
            b'skip = ["relu.*"]\n[rule."weight.range"]\nmax_gt = 1e3\nseverity = "hint"\n',
            b'[row."env"]\nseverity = "hint"\n[expect]\nfrozen = ["a.*"]\nshared = [["a", "b"]]\n',
        ],
        "tolerances": [b"metric,limit,dtype,op_type,why\nrel_l2,1e-3,float16,softmax,measured\n"],
        "noise": [b"op,slot,rel_l2\nFunctional.relu.0.forward,output:0,1e-3\n"],
        **{f"report_{name}": [data] for name, data in _report().items()},
        "ticket": [_report()["roots"]],
        "merge": [_report()["tensors"]],
    }


def files_beside() -> dict[str, dict[str, bytes]]:
    """The files that a target needs beside its own, by their places."""
    report, other = (
        {f"{name}.json" if name == "summary" else f"{name}.csv": data for name, data in _report(step).items()}
        for step in range(2)
    )
    relu = {"input_args": [], "input_kwargs": {}, "output": [{"type": "int", "value": 1}]}
    dump = json.dumps({"task": "tensor", "data": {"Functional.relu.0.forward": relu}}).encode()
    return {
        **dict.fromkeys(("report_summary", "report_tensors", "report_roots", "ticket"), report),
        "merge": {**report, **{f"other/{name}": data for name, data in other.items()}},
        **{name: {"step0/rank0/dump.json": dump} for name in ("construct", "stack")},
        "checkpoint": {"__0_0.distcp": bytes(64)},
        **{f"checkpoint_{name}": {"model.safetensors": _safetensors()} for name in ("config", "index")},
    }


def _npz(**arrays: np.ndarray) -> bytes:  # type: ignore[type-arg]
    made = BytesIO()
    np.savez(made, **arrays)  # type: ignore[arg-type]
    return made.getvalue()


def _safetensors() -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


def _hdf5(**storage: object) -> bytes:
    import h5py

    made = BytesIO()
    with h5py.File(made, "w", libver="latest") as file:
        one = file.create_dataset("a/b", data=np.arange(12, dtype=np.float32).reshape(3, 4), **storage)
        one.attrs["stride"] = [4, 1]
        file["c"] = np.int64(3)
    return made.getvalue()


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
def _report(step: int = 0) -> dict[str, bytes]:
    """The summary and two tables of a report."""
    from npucmp import compare, write_reports
    from tests.synthetic import chain, write_run

    with TemporaryDirectory() as folder:
        sides = [
            write_run(Path(folder, f"side{at}"), chain(faults, steps=2), step)
            for at, faults in enumerate(({1: 2.0}, ()))
        ]
        write_reports(compare(*sides, jobs=1), folder)
        names = {"summary": "summary.json", "tensors": "tensors.csv", "roots": "roots.csv"}
        return {name: Path(folder, file).read_bytes() for name, file in names.items()}
