"""A graph that GE executed against the FX graph it was made of: the graph beside the dump says which is which."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import npucmp
from tests.dump.formats.test_fx import NODES, write_fx
from tests.dump.formats.three import three
from tests.dump.readers import craft_cann as craft

GRAPH = "dynamo_original_graph_1_rank_0_pid_7_ts_20251017.txt"
KERNELS = (("MatMulV2", "MatMul"), ("Tanh", "Tanh"), ("Add", "Add_2"))


def op(name, op_type, inputs, fx="") -> str:
    """One operator of the text that TorchAir writes."""
    told = f'attr {{ key: "_fx_tensor_name" value {{ s: "{fx}" }} }}' if fx else ""
    reads = "".join(f'  input: "{one}"\n' for one in inputs)
    described = '  input_desc { layout: "ND" }\n' * len(inputs)
    return (
        f'op {{\n  name: "{name}"\n  type: "{op_type}"\n{reads}{described}  output_desc {{ layout: "ND" {told} }}\n}}\n'
    )


def graph() -> str:
    reads = (("x:0", "w:0"), ("MatMul:0",), ("Tanh:0", "b:0"))
    return "".join(
        [op(name, "Data", ()) for name in "xwb"]
        + [op(name, kind, one, f"{fx}.OUTPUT.0") for (kind, name), one, fx in zip(KERNELS, reads, NODES)]
    )


def write_ge(folder, wrong=False, fused=False) -> Path:
    """Raw files of the three, or of the last two in one, as torchair's GE dump has them."""
    place = Path(folder, "20251017071211", "0", "graph_1_0", "1", "0")
    place.mkdir(parents=True)
    ops = [(kind, name, one.inputs, one.outputs) for (kind, name), one in zip(KERNELS, three(wrong))]
    if fused:
        (_, name, inputs, _), (_, other, more, outputs) = ops[1:]
        ops[1:] = [("AutomaticBufferFusionOp", name + other, (*inputs, more[1]), outputs)]
    for number, (kind, name, inputs, outputs) in enumerate(ops):
        made = [[craft.tensor(np.asarray(x)) for x in side] for side in (inputs, outputs)]
        (place / f"{kind}.{name}.{number}.6.{craft.TIME + number}").write_bytes(craft.v2(*made, op_name=name))
    Path(folder, GRAPH).write_text(graph())
    return Path(folder)


def test_the_fault_is_born_where_it_is(tmp_path):
    target, golden = write_ge(tmp_path / "t", wrong=True), write_fx(tmp_path / "g")
    report = npucmp.compare(target, golden)
    assert [(r.pair.operator.name, r.cause.value) for r in report.roots] == [("Tanh", "BORN"), ("Add_2", "PROPAGATED")]
    outputs = {
        one.pair.operator.name: one.pair.golden_op.name for one in report.findings if one.pair.slot == "output:0"
    }
    assert outputs == {"MatMul": NODES[0], "Tanh": NODES[1], "Add_2": NODES[2]}
    assert {one.pair.via for one in report.findings if one.pair.slot == "output:0"} == {"fused"}


def test_equal_values_are_no_fault(tmp_path):
    report = npucmp.compare(write_ge(tmp_path / "t"), write_fx(tmp_path / "g"))
    assert (report.roots, report.exit_status) == ((), 0)
    assert {one.verdict.value for one in report.findings} == {"match"}


def test_what_was_fused_later_is_known_by_its_name(tmp_path):
    """TanhAdd_2 is in no graph of TorchAir's: it reads what both read, and writes what the last wrote."""
    report = npucmp.compare(write_ge(tmp_path / "t", wrong=True, fused=True), write_fx(tmp_path / "g"))
    assert [(r.pair.operator.name, r.pair.golden_op.name, r.cause.value) for r in report.roots] == [
        ("TanhAdd_2", NODES[2], "BORN")
    ]
    assert npucmp.compare(write_ge(tmp_path / "same", fused=True), tmp_path / "g").exit_status == 0
