"""Folders of .pt and .pth files: what names and folders tell, and what is born in dumps written as documents say."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from npucmp import compare, open_runs
from npucmp.dump.formats import pt
from npucmp.errors import DumpError, UsageError
from npucmp.model import Cause, Verdict
from tests.contracts import FormatContract
from tests.dump.formats.pt_files import body, causes, chain, pt_file, save_pt
from tests.dump.readers.craft import integer, name, reduce, text
from tests.dump.readers.craft import pt as pt_of

X = np.ones((2, 3), np.float32)


def aclgraph(root: Path, wrong: bool = False) -> Path:
    """msprobe's AclGraphDumper, task tensor: as aclgraph_dump_instruct.md prints the tree."""
    x = chain(wrong)
    folder = root / "step0" / "rank0" / "dump_tensor_data"
    for n in range(3):
        save_pt(folder / f"Module.layers.{n}.fc.Linear.0.input.0.pt", x[n])
        save_pt(folder / f"Module.layers.{n}.fc.Linear.0.input_kwargs.scale.pt", x[0])
        save_pt(folder / f"Module.layers.{n}.fc.Linear.0.output.pt", x[n + 1])
    return root


def hooked(root: Path, wrong: bool = False) -> Path:
    """msit's torch hook: token ids below the device and process."""
    x = chain(wrong)
    for token in (0, 1):
        folder = root / "msit_dump_20260101_000000" / "torch_tensors" / "npu0_4711" / str(token)
        for n in range(3):
            save_pt(folder / f"root.model.layers.{n}" / "input_0.pth", x[n])
            save_pt(folder / f"root.model.layers.{n}" / "output_0_0.pth", x[n + 1])
    save_pt(folder.parent / "weights" / "root.model.layers.0.weight.pth", x[0])
    return root


def sglang(root: Path, wrong: bool = False) -> Path:
    """SGLang's dumper of today: the order of execution is in the names, the tensor beside facts of it."""
    x = chain(wrong)
    (root / "sglang_dump_1").mkdir(parents=True)
    for n, what in enumerate(("embed", "attn", "mlp")):
        saved = body(x[n + 1])
        whole = b"}(" + text("value") + saved + text("meta") + b"}" + text("rank") + integer(0) + b"s" + b"u"
        file = root / "sglang_dump_1" / f"name={what}___step=7___rank=0___dump_index={n + 1}___layer_id=3.pt"
        file.write_bytes(pt_of(whole, x[n + 1].tobytes()))
    return root


def saved(root: Path, wrong: bool = False) -> Path:
    """acl_save: one tensor each, numbered by a counter of the process."""
    for n, (what, values) in enumerate(zip(("norm", "attn", "mlp"), chain(wrong)[1:])):
        save_pt(root / "rank0" / f"{what}_{n + 9}.pt", values)
    return root


def micro(root: Path, wrong: bool = False) -> Path:
    """Reinforcement learning: steps and ranks with a line below, and micro batches."""
    x = chain(wrong)
    for n in range(3):
        folder = root / "4711" / "step_3" / "rank_1" / "micro_batch_0"
        save_pt(folder / f"model.layers.{n}.input.pt", x[n])
        save_pt(folder / f"model.layers.{n}.output.pt", x[n + 1])
        save_pt(folder.parent / "micro_batch_1" / f"model.layers.{n}.output.pt", chain()[n + 1])
    return root


WRITERS = {"AclGraphDumper": aclgraph, "msit": hooked, "SGLang": sglang, "acl_save": saved, "micro batches": micro}
SECOND = {
    "AclGraphDumper": ("Module.layers.1.fc.Linear.0", "BORN"),
    "msit": ("root.model.layers.1", "BORN"),
    "SGLang": ("attn___layer_id=3", "UNKNOWN"),  # outputs alone cannot tell where it is born; it comes first
    "acl_save": ("attn_10", "UNKNOWN"),
    "micro batches": ("micro_batch_0/model.layers.1", "BORN"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_the_second_of_three_is_wrong(tmp_path, writer):
    target, golden = WRITERS[writer](tmp_path / "t", wrong=True), WRITERS[writer](tmp_path / "g")
    assert next(iter(causes(target, golden).items())) == SECOND[writer]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_copy_agrees(tmp_path, writer):
    report = compare(WRITERS[writer](tmp_path / "t"), WRITERS[writer](tmp_path / "g"))
    assert report.exit_status == 0 and {one.verdict for one in report.findings} == {Verdict.MATCH}


class TestAclGraphDumper(FormatContract):
    module = pt

    def write(self, folder):
        return aclgraph(folder / "d")


class TestSglang(FormatContract):
    module = pt

    def write(self, folder):
        return sglang(folder / "d")


class TestMicroBatches(FormatContract):
    module = pt

    def write(self, folder):
        return micro(folder / "d")


@pytest.mark.parametrize(
    "file, step, rank, operator, slot",
    [
        ("step3/rank1/dump_tensor_data/linear.4.input.0.pt", 3, 1, "linear.4", "input:0"),
        ("step3/pid77/dump_tensor_data/linear.4.output.pt", 3, None, "linear.4", "output:0"),
        ("step3/pid77/tensor_data/linear.4.output.logits.pt", 3, None, "linear.4", "output:logits"),
        ("dump_tensor_data/rank2/Aten.add.Tensor.0.input.1.pt", None, 2, "Aten.add.Tensor.0", "input:1"),
        ("step_3/rank_1/a.pt", 3, 1, "a", "output:0"),
        ("worldsize8_global_rank5/step0/rank0/a.pt", 0, 5, "a", "output:0"),
        ("token_4/a.pt", 4, None, "a", "output:0"),
        ("cuda1_99/6/root/output.pth", 6, 1, "root", "output:0"),
        ("cuda_99/6/root.a.b/output_1_2.pth", 6, None, "root.a.b", "output:1.2"),
        ("npu3_99/weights/root.a.b.weight.pth", None, 3, "root.a.b", "param:weight"),
        ("d/forward_pass_id=2___name=x.pt", 2, None, "x", "output:0"),
        ("d/forward_pass_id=2__name=x__layer=1.pt", 2, None, "x___layer=1", "output:0"),
        ("d/step=2___rank=3___dump_index=1___name=my_attn.pt", 2, 3, "my_attn", "output:0"),
        ("d/a=1___b=2.pt", None, None, "a=1___b=2", "output:0"),
        ("d/Functional.linear.0.forward.input.0.pt", None, None, "Functional.linear.0.forward", "input:0"),
        ("d/Module.a.B.forward.0.parameters.weight.pt", None, None, "Module.a.B.forward.0", "param:weight"),
        ("d/Module.a.B.parameters_grad.weight.pt", None, None, "Module.a.B.parameters_grad", "grad:weight"),
        ("d/bert.encoder.0.output.dense.pt", None, None, "bert.encoder.0.output.dense", "output:0"),
        ("d/.pt", None, None, "", "output:0"),
    ],
)
def test_names_and_folders(tmp_path, file, step, rank, operator, slot):
    save_pt(tmp_path / "dump" / file, X)
    (run,) = open_runs(tmp_path / "dump")
    (found,) = run.operators
    assert (run.step, run.rank, found.name, found.tensors[0].slot) == (step, rank, operator, slot)


@pytest.mark.parametrize("below", ["", "step0", "step0/rank0", "step0/rank0/dump_tensor_data"])
def test_any_level_may_be_given(tmp_path, below):
    (run,) = open_runs(aclgraph(tmp_path / "d") / below)
    assert (run.step, run.rank, len(run.operators)) == (0, 0, 3)


def test_several_dumps_are_listed(tmp_path):
    """A parent of two runs is no run: a folder that tells neither step nor rank is a dump of its own."""
    for side in ("target", "golden"):
        save_pt(tmp_path / side / "a.pt", X)
    with pytest.raises(DumpError) as caught:
        open_runs(tmp_path)
    assert "(golden, target)" in str(caught.value)


def test_processes_of_one_step_are_listed(tmp_path):
    for process in (1, 2):
        save_pt(tmp_path / "step0" / f"pid{process}" / "dump_tensor_data" / "a.0.output.pt", X)
    with pytest.raises(DumpError) as caught:
        open_runs(tmp_path)
    assert "pid1" in str(caught.value) and "pid2" in str(caught.value)


def test_numbers_of_calls_go_before_names_and_a_module_behind_what_it_holds(tmp_path):
    for name_ in ("b.1.output.0", "b.0.output.0", "c.0.output.0", "layer.10", "layer.9", "layer.9.attn", "layer"):
        save_pt(tmp_path / f"{name_}.pt", X)
    (run,) = open_runs(tmp_path)
    names = [operator.name for operator in run.operators]
    assert names == ["layer.9.attn", "layer.9", "layer.10", "layer", "b.0", "c.0", "b.1"]
    assert not run.ordered and any("order: guessed" in note for note in run.notes)


def test_modules_know_the_one_around_them(tmp_path):
    for module in ("root", "root.model", "root.model.layers.0.attn"):
        save_pt(tmp_path / "npu0_1" / "0" / module / "output.pth", X)
    (run,) = open_runs(tmp_path)
    assert [(one.name, one.scope) for one in run.operators] == [
        ("root.model.layers.0.attn", "root.model"), ("root.model", "root"), ("root", ""),
    ]  # fmt: skip


def test_repeated_names_of_sglang_are_executions_in_order(tmp_path):
    for index, what in enumerate(("attn", "mlp", "attn", "mlp")):
        save_pt(tmp_path / f"forward_pass_id=0___rank=0___name={what}___dump_index={index}.pt", X)
    (run,) = open_runs(tmp_path)
    assert [one.name for one in run.operators] == ["attn", "mlp", "attn", "mlp"] and run.ordered


def test_two_files_are_compared_whatever_they_are_called(tmp_path):
    save_pt(tmp_path / "npu.pt", X)
    save_pt(tmp_path / "gpu.pth", X)
    save_pt(tmp_path / "bad.pt", 2 * X)
    assert compare(tmp_path / "npu.pt", tmp_path / "gpu.pth").exit_status == 0
    (root,) = compare(tmp_path / "bad.pt", tmp_path / "gpu.pth").roots
    assert root.cause is Cause.UNKNOWN and root.pair.operator.name == "bad"


def test_two_files_of_other_shapes_are_told(tmp_path):
    save_pt(tmp_path / "a.pt", X)
    save_pt(tmp_path / "b.pt", X.T)
    with pytest.raises(UsageError):
        compare(tmp_path / "a.pt", tmp_path / "b.pt")


@pytest.mark.parametrize("several", [False, True])
def test_every_prefix_is_an_unreadable_tensor(tmp_path, several):
    data = state(X, X, X) if several else pt_file(X)
    for size in range(0, len(data), 3):
        (tmp_path / "x.pt").write_bytes(data[:size])
        (run,) = pt.open_runs(tmp_path)
        assert run.operators[0].tensors[0].problem, size


def test_nothing_is_unpickled(tmp_path):
    wants = reduce(name("posix", "system"), text("touch MARKER"))
    (tmp_path / "x.pt").write_bytes(pt_of(wants))
    facts = b"}(" + text("value") + body(X) + text("meta") + wants + b"u"
    (tmp_path / "y.pt").write_bytes(pt_of(facts, X.tobytes()))
    (run,) = open_runs(tmp_path)
    assert ["posix.system" in operator.tensors[0].problem for operator in run.operators] == [True, True]


def test_what_is_no_tensor_costs_its_row(tmp_path):
    save_pt(tmp_path / "a.pt", X)
    (tmp_path / "state.pt").write_bytes(pt_of(b"}"))
    (tmp_path / "raw.bin").write_bytes(b"x")
    (run,) = open_runs(tmp_path)
    assert "a dict of 0 entries" in run.operators[1].tensors[0].problem
    assert any("raw.bin" in note for note in run.notes)


@pytest.mark.parametrize(
    "stem", ["9" * 200, "a." + "9" * 200 + ".output.0", "x_" + "9" * 200, "²", "step=²___name=a", "=", "___"]
)
def test_odd_names(tmp_path, stem):
    save_pt(tmp_path / f"{stem}.pt", X)
    (run,) = open_runs(tmp_path)
    assert len(run.operators) == 1


def test_many_files_open_at_once(tmp_path):
    """20,000 take seconds: a tenth of them is held to a tenth of that."""
    data = pt_file(X)
    folder = tmp_path / "step0" / "rank0" / "dump_tensor_data"
    folder.mkdir(parents=True)
    for n in range(2000):
        (folder / f"Module.layers.{n}.fc.Linear.0.output.0.pt").write_bytes(data)
    started = time.process_time()
    (run,) = open_runs(tmp_path)
    assert len(run.operators) == 2000 and time.process_time() - started < 2


def state(*arrays: np.ndarray) -> bytes:
    """{"model": {"w0": tensor, 1: [tensor, …]}, "step": 7} as torch.save writes it."""
    first, *others = (body(values, str(at)) for at, values in enumerate(arrays))
    inner = b"}(" + text("w0") + first + integer(1) + b"](" + b"".join(others) + b"eu"
    whole = b"}(" + text("model") + inner + text("step") + integer(7) + b"u"
    members = {f"data/{at}": values.tobytes() for at, values in enumerate(arrays)}
    return pt_of(whole, members.pop("data/0"), **members)


def test_several_tensors_of_one_file_are_slots(tmp_path):
    arrays = [np.full((2, 3), n, np.float32) for n in range(3)]
    (tmp_path / "a.pt").write_bytes(state(*arrays))
    (tmp_path / "b.pt").write_bytes(state(*arrays[:2], arrays[2] + 1))
    (run,) = open_runs(tmp_path / "a.pt")
    slots = ["output:0.model.1.0", "output:0.model.1.1", "output:0.model.w0"]
    assert sorted(tensor.slot for tensor in run.operators[0].tensors) == slots
    assert compare(tmp_path / "a.pt", tmp_path / "a.pt").exit_status == 0
    report = compare(tmp_path / "a.pt", tmp_path / "b.pt")
    assert [one.pair.slot for one in report.findings if one.verdict is Verdict.DIVERGED] == ["output:0.model.1.1"]


def test_a_broken_tensor_of_several_costs_its_row(tmp_path):
    arrays = [np.ones((2, 3), np.float32)] * 2
    whole = b"](" + body(arrays[0], "0") + body(arrays[1], "9") + b"e"
    (tmp_path / "b.pt").write_bytes(pt_of(whole, arrays[0].tobytes()))
    (run,) = open_runs(tmp_path / "b.pt")
    assert [bool(tensor.problem) for tensor in run.operators[0].tensors] == [False, True]


LISTS = {
    "holding itself": b"]q\x00" + b"h\x00a",
    "thousands of itself": b"]q\x00(" + b"h\x00" * 40000 + b"e",
    "doubled thirty times": b"]q\x00" + b"".join(b"](h%ch%ceq%c" % (n, n, n + 1) for n in range(30)),
    "deep": b"]" * 3000 + b"a" * 2999,
}


@pytest.mark.parametrize("value", LISTS.values(), ids=LISTS)
def test_values_that_never_end_are_refused(tmp_path, value):
    (tmp_path / "a.pt").write_bytes(pt_of(value))
    started = time.perf_counter()
    (run,) = open_runs(tmp_path)
    assert run.operators[0].tensors[0].problem and time.perf_counter() - started < 5
