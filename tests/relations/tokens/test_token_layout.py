"""The same tokens in other layouts: padded, packed, in steps, of another batch. Runs are compared token by token."""

from __future__ import annotations

import csv
import json
import os
import tracemalloc

import numpy as np
import pytest

import npucmp
from npucmp.errors import SystemFailure
from tests.command import npucmp as run
from tests.corpus.tokens import layouts
from tests.corpus.tokens.dumps import Style, write
from tests.corpus.tokens.faults import Fault
from tests.corpus.tokens.network import VOCABULARY, Network

LENGTHS = [7, 5, 6]
ORDER = [0, 1, 2]
CORE = "model.layers.1.self_attn.core"
LAYOUTS = {
    "packed": layouts.packed(LENGTHS, ORDER),
    "lead": layouts.packed(LENGTHS, ORDER, lead=True),
    "other order": layouts.packed(LENGTHS, [2, 0, 1]),
    "left": layouts.padded(LENGTHS, ORDER, left=True),
    "sequence first": layouts.padded(LENGTHS, ORDER, turned=True),
    "wider": layouts.padded(LENGTHS, ORDER, wide=2),
    "decoded": layouts.decoded(LENGTHS, ORDER, 2, False),
    "decoded batch": layouts.decoded(LENGTHS, ORDER, 2, True),
    "chunked": layouts.chunked(LENGTHS, ORDER, 4),
    "one by one": layouts.one_by_one(LENGTHS, [1, 0, 2]),
}
PADDED = layouts.padded(LENGTHS, ORDER)


def pair(folder, target, golden=PADDED, fault=None, style=Style("L0"), seed=3, ids=None, without=""):
    """Write both dumps; `ids` of the target, if they are other ones; no operators of the kind `without`."""
    network = Network(seed, style.dtype)
    generator = np.random.default_rng(seed)
    own = [generator.integers(1, VOCABULARY, length) for length in LENGTHS]
    padding = network.run([np.zeros(9, np.int64)], True)
    change, attend = (None, None) if fault is None else (fault.change, fault.attend)
    sides = network.run(ids or own, False, change, attend), network.run(own, True), padding
    found, exact, padding = ([one for one in side if one.kind != without] for side in sides)
    write(folder / "target", target, found, padding, style, style.names == "vllm")
    write(folder / "golden", golden, exact, padding, style, False)
    return folder / "target", folder / "golden"


def first_root(folder, dumps):
    status = run("compare", *dumps, "-o", folder / "report").returncode
    rows = [*csv.DictReader((folder / "report" / "roots.csv").open())]
    return status, rows[0]


PATTERNS = [
    (Fault("cache", CORE, 1, 2, 1.0), ("1", "2"), "request 1 differs from position 2 on"),
    (Fault("request", CORE, 2, 0, 1.0), ("2", "0"), "all tokens of request 2 differ, and of no other"),
    (Fault("head", CORE, 0, 0, 1.3), ("0", "0"), "columns 4 to 7 of 16 differ"),
    (Fault("all", "model.layers.0.mlp.down_proj", 0, 0, 1.1), ("0", "0"), "all tokens differ"),
]


@pytest.mark.few(2)
@pytest.mark.parametrize("fault, place, words", PATTERNS)
def test_the_pattern_of_the_tokens_is_named(tmp_path, fault, place, words):
    status, root = first_root(tmp_path, pair(tmp_path, LAYOUTS["packed"], fault=fault))
    assert status == 1 and fault.path in root["golden_op"]
    assert (root["request"], root["position"]) == place and words in root["evidence"]


def test_evidence_names_the_row_of_the_target(tmp_path):
    """Request 1 stands behind the seven tokens of request 0, of which each step has one at most after the prefill."""
    fault = Fault("token", "model.layers.0.mlp.up_proj", 1, 4, 1.3)
    packed, decoded = (tmp_path / one for one in ("packed", "decoded"))
    assert "row 11" in first_root(packed, pair(packed, LAYOUTS["packed"], fault=fault))[1]["evidence"]
    assert "step 2, row 1" in first_root(decoded, pair(decoded, LAYOUTS["decoded"], fault=fault))[1]["evidence"]


def test_a_faulty_token_of_many_is_found_below_the_limit_of_the_tensor(tmp_path):
    """bfloat16: the error of one token of 18 is a quarter of itself in the whole tensor."""
    fault = Fault("token", "model.layers.1.mlp.gate_proj", 0, 6, 1.12)
    status, root = first_root(
        tmp_path, pair(tmp_path, LAYOUTS["packed"], fault=fault, style=Style("L0", dtype="bfloat16"))
    )
    assert status == 1 and (root["rule"], root["request"], root["position"]) == ("odd_token", "0", "6")


def test_tokens_that_cannot_be_read_again_have_their_reason(tmp_path, monkeypatch):
    """A tensor that agrees as a whole is unreadable then: single tokens may differ."""

    def failing(pair, context):
        raise SystemFailure(pair.operator.name, "cannot be read: Input/output error")

    odd = Fault("token", "model.layers.1.mlp.gate_proj", 0, 6, 1.12)
    plain = Fault("token", "model.layers.1.mlp.gate_proj", 0, 6, 1.5)
    monkeypatch.setattr("npucmp.relations.tokens.token_origin.row_errors", failing)
    for fault, status, whole in ((odd, 2, "unreadable"), (plain, 1, "diverged")):
        dumps = pair(tmp_path / whole, LAYOUTS["packed"], fault=fault, style=Style("L0", dtype="bfloat16"))
        report = npucmp.compare(*dumps, precheck=False, jobs=1)
        found = [one for one in report.findings if one.pair.slot == "output:0" and fault.path in one.pair.operator.name]
        assert (report.exit_status, [one.verdict.value for one in found]) == (status, [whole])
        assert "Input/output error" in (report.roots[0].because if report.roots else found[0].because)


def test_an_unreadable_tensor_has_a_row_in_another_layout(tmp_path):
    dumps = pair(tmp_path, LAYOUTS["packed"], style=Style("L0", extras=True))
    files = [next(dumps[0].rglob(f"*layers.0.{name}.pt")) for name in ("*position_ids", "*up_proj*.output.0")]
    for file in files:
        os.truncate(file, 20)
    report = npucmp.compare(*dumps, precheck=False, jobs=1)
    rows = [one for one in report.findings if one.verdict.value != "match" and one.pair.golden.relation is None]
    assert sorted(one.measurement.unreadable.file for one in rows) == sorted(map(str, files))
    assert report.exit_status == 2 and all(one.because.startswith("target: ") for one in rows)


def test_memory_does_not_grow_with_the_pairs_of_padding(tmp_path):
    """1,503 tokens of padding on each side have one id: 2.3 million pairs, of which each tensor would need 160 MB."""
    wide = [layouts.padded(LENGTHS, ORDER, left=left, wide=500) for left in (False, True)]
    dumps = pair(tmp_path, *wide, style=Style("L0", extras=True, ending="npy"))
    tracemalloc.start()
    report = npucmp.compare(*dumps, precheck=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.exit_status == 0 and report.tokens.tokens == 18 and peak < 100e6


def test_steps_are_paired_by_number(tmp_path):
    dumps = pair(tmp_path, LAYOUTS["packed"] * 3, PADDED * 3, style=Style("L0", extras=True))
    (dumps[1] / "step0").rename(dumps[1] / "step3")
    report = npucmp.compare(*dumps)
    assert [one.step for one in report.comparisons] == [1, 2] and report.exit_status == 2
    assert [(side, alone.step) for side, alone in report.unpaired] == [("target", 0), ("golden", 3)]


def with_tensors(folder, files):
    for name, values in files.items():
        np.save(folder / "step0" / "rank0" / f"model.layers.{name}.npy", values)


def test_statistics_prove_nothing(tmp_path):
    done = run("compare", *pair(tmp_path, LAYOUTS["packed"], style=Style("statistics")))
    assert done.returncode == 2 and done.stdout.splitlines()[-1].startswith("UNDECIDED")
    assert "statistics of tensors with other tokens prove nothing: record values on both sides" in done.stdout


def test_summary_and_screen_have_the_lengths(tmp_path):
    done = run("compare", *pair(tmp_path, LAYOUTS["packed"], style=Style("L0", extras=True)), "-o", tmp_path / "report")
    assert "tokens: 18 of 3 requests, packed; golden batch x sequence [3, 7], padded right" in done.stdout
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert summary["tokens"]["lengths"] == [7, 5, 6]
    rows = [*csv.DictReader((tmp_path / "report" / "tensors.csv").open())]
    assert {row["relation"] for row in rows if row["target_shape"] == "18x16"} <= {"tokens(18 of 3 requests)"}


def test_batch_invariance_counts_the_tokens_with_equal_bits(tmp_path):
    """The share is that of the rows of the arrays."""
    target, golden = pair(tmp_path, LAYOUTS["packed"], style=Style("npy"))
    done = run("compare", target, golden, "--batch-invariance", "-o", tmp_path / "report")
    assert "batch invariance: " in done.stdout
    rows = {
        (row["op"], row["slot"]): row for row in csv.DictReader((tmp_path / "report" / "batch_invariance.csv").open())
    }
    for op in ("model.layers.0.input_layernorm", "model.layers.2.mlp.down_proj", "model.embed_tokens"):
        left, right = (np.load(one / "step0" / "rank0" / f"{op}.output.0.npy") for one in (target, golden))
        tokens = np.concatenate([right[request, :length] for request, length in enumerate(LENGTHS)])
        assert int(rows[op, "output:0"]["equal_tokens"]) == (left == tokens).all(1).sum()


OTHER_BITS = {
    "int64": (np.int64(1 << 60), np.int64((1 << 60) + 1)),
    "complex64": (np.complex64(1 + 2j), np.complex64(1 + 3j)),
    "zero": (np.float32(0.0), np.float32(-0.0)),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", OTHER_BITS)
def test_batch_invariance_compares_bits(tmp_path, name):
    """One token of 18 differs in a bit that float64 does not show, in the imaginary part, or in the sign of 0."""
    dumps = pair(tmp_path, LAYOUTS["packed"], style=Style("npy", extras=True))
    usual, other = OTHER_BITS[name]
    packed, padded = np.full(18, usual), np.full((3, 7), usual)
    packed[9] = other
    for dump, values in zip(dumps, (packed, padded)):
        with_tensors(dump, {"0.mlp.up_proj.output.1": values})
    run("compare", *dumps, "--batch-invariance", "-o", tmp_path / "report")
    rows = csv.DictReader((tmp_path / "report" / "batch_invariance.csv").open())
    found = next(row for row in rows if (row["op"], row["slot"]) == ("model.layers.0.mlp.up_proj", "output:1"))
    assert (found["tokens"], found["equal_tokens"]) == ("18", "17")
    assert (float(found["max_rel_l2"]) > 0) == (name != "zero")


def test_batch_invariance_needs_values(tmp_path):
    done = run("compare", *pair(tmp_path, LAYOUTS["packed"], style=Style("statistics")), "--batch-invariance")
    assert done.returncode == 2 and "--batch-invariance needs the same tokens" in done.stderr
