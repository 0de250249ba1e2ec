"""A dump made for a graph that atc compiled, with the network's own Cast, inserted ones and folded reshapes, against a
reference under the names of the network. What each is stands in the JSON, which is read here without npucmp."""

from __future__ import annotations

import json
import shutil
from math import prod
from pathlib import Path

import numpy as np
import pytest

import npucmp
from tests.dump.readers import craft_cann

MODEL = Path(__file__).resolve().parents[4] / "shared" / "data" / "cann" / "atc_mode1_om_model.json"
NOT_EXECUTED = {"Data", "Const", "Constant", "NetOutput"}
PART = "_datadump_original_op_names"


def attribute(op, key):
    return next((one["value"] for one in op.get("attr", ()) if one["key"] == key), None)


def originals(op):
    """None for what GE left alone, [] for what it put in."""
    found = attribute(op, PART)
    return None if found is None else [*map(str, found.get("list", {}).get("s", ()))]


def shape(description):
    return tuple(description.get("shape", {}).get("dim", ()))


def written(op, read, wrong):
    """The values of its outputs: an inserted operator hands on what it reads, the network's own Cast cuts decimals."""
    if op["type"] == "Cast" or (originals(op) == [] and "output_desc" in op):
        values = read[0].reshape(shape(op["output_desc"][0]))
        cut = np.trunc(values * 8) if originals(op) is None else values
        return [cut + 1 if wrong and originals(op) is None else cut]
    return [np.random.default_rng([*op["name"].encode()]).standard_normal(shape(one), np.float32)
            for one in op.get("output_desc", ())]  # fmt: skip


def write(target: Path, golden: Path, wrong: bool = False) -> dict[str, str]:
    """Returned are the types of the operators of the device."""
    target.mkdir(parents=True)
    golden.mkdir(parents=True, exist_ok=True)
    values, executed = {}, {}
    for number, op in enumerate(json.loads(MODEL.read_text())["graph"][0]["op"]):
        reads = [one for one in op.get("input", ()) if one and not one.endswith(":-1")]
        told = [one for one in op.get("input_desc", ()) if one]
        inputs = [values[name].reshape(shape(one)) if prod(shape(one)) == values[name].size else values[name]
                  for name, one in zip(reads, told)]  # fmt: skip
        outputs = written(op, inputs, wrong)
        values.update((f"{op['name']}:{n}", one) for n, one in enumerate(outputs))
        if op["type"] in NOT_EXECUTED or not outputs:
            continue
        executed[op["name"]] = op["type"]
        time = craft_cann.TIME + number
        tensors = ([craft_cann.tensor(one) for one in some] for some in (inputs, outputs))
        file = f"{op['type']}.{op['name'].replace('/', '_')}.{number}.3.{time}"
        craft_cann.save(target, **{file: craft_cann.v2(*tensors, op_name=op["name"])})
        names = [op["name"]] if originals(op) is None else originals(op)
        for n, one in enumerate(outputs if len(names) == 1 else ()):
            np.save(golden / f"{names[0].replace('/', '_')}.{n}.{time}.npy", one)
    return executed


@pytest.mark.skipif(not MODEL.is_file(), reason="the shared files are not beside this checkout")
def test_a_real_graph_is_found_and_its_operators_are_what_they_are(tmp_path):
    """The graph lies in {output}/model, as an offline run of msprobe leaves it, and no option names it."""
    dump, golden = tmp_path / "out" / "dump" / "20260101000000" / "0" / "om" / "1" / "0", tmp_path / "golden"
    (tmp_path / "out" / "model").mkdir(parents=True)
    shutil.copy(MODEL, tmp_path / "out" / "model" / "some.json")
    executed = write(dump, golden)
    report = npucmp.compare(tmp_path / "out" / "dump", golden)
    assert (report.exit_status, report.roots) == (0, ())
    assert any("some.json" in note for note in report.comparisons[0].target.notes)
    pairs = [one.pair for one in report.findings]
    partners = {pair.target_op.name: pair.golden_op.name for pair in pairs if pair.target_op and pair.golden_op}
    assert partners["Cast_1206"] == "Cast_1206" and {*executed} == {*partners} | {"trans_Cast_0", "trans_Cast_2"}
    shutil.rmtree(tmp_path / "out" / "dump")
    write(dump, tmp_path / "again", wrong=True)
    first = npucmp.compare(tmp_path / "out" / "dump", golden).roots[0]
    assert (first.pair.operator.name, first.cause.value) == ("Cast_1206", "BORN")
