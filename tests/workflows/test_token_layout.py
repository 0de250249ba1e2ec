"""The same tokens in other layouts: padded, packed, in steps, of another batch. Runs are compared token by token."""

from __future__ import annotations

import csv
import json
import os
import tracemalloc
from collections import Counter

import numpy as np
import pytest

import npucmp
from npucmp.dump.readers.safe_open import open_regular
from npucmp.errors import SystemFailure
from tests.command import npucmp as run
from tests.corpus.tokens import layouts
from tests.corpus.tokens.dumps import Style, write
from tests.corpus.tokens.faults import Fault
from tests.corpus.tokens.layouts import PADDING, Step
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


@pytest.mark.few(2)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_clean_layout_agrees_and_covers_the_golden(tmp_path, name):
    style = Style("L0", extras=True, ids=name != "chunked")
    report = npucmp.compare(*pair(tmp_path, LAYOUTS[name], style=style), precheck=False)
    assert report.exit_status == 0 and not report.roots
    assert (report.tokens.tokens, report.tokens.lengths) == (18, (7, 5, 6))
    assert report.tokens.padding.startswith("padded right")


@pytest.mark.few(2)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_token_is_found_in_every_layout(tmp_path, name):
    fault = Fault("token", "model.layers.1.mlp.up_proj", 1, 3, 1.05)
    report = npucmp.compare(*pair(tmp_path, LAYOUTS[name], fault=fault), precheck=False)
    root = report.roots[0]
    assert report.exit_status == 1 and root.cause.value == "BORN" and fault.path in root.pair.golden_op.name
    assert (root.request, root.position) == (1, 3) and root.relation.startswith("tokens(18 of 3 requests")
    assert "one token differs: request 1, position 3" in root.because


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
    monkeypatch.setattr("npucmp.localise.token_origin.row_errors", failing)
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


def test_bfloat16_and_folders_of_arrays_agree(tmp_path):
    for style in (Style("L0", dtype="bfloat16", extras=True), Style("npy", extras=True)):
        assert (
            npucmp.compare(*pair(tmp_path / style.form / style.dtype, LAYOUTS["packed"], style=style)).exit_status == 0
        )


def test_one_request_is_found_in_a_batch(tmp_path):
    report = npucmp.compare(*pair(tmp_path, LAYOUTS["other order"], layouts.packed(LENGTHS, [1], lead=True)))
    assert report.exit_status == 0 and report.tokens.tokens == 5


def test_names_of_vllm_agree(tmp_path):
    """Fused products against their parts, in steps of decoding."""
    records = Style("L0", names="vllm", extras=True)
    report = npucmp.compare(*pair(tmp_path, LAYOUTS["decoded"], style=records, without="SiluAndMul"))
    assert report.exit_status == 0 and report.tokens.steps == 3


def test_a_mask_of_the_loss_is_no_padding(tmp_path):
    """Tokens that a mask with another name hides are compared: the fault of the prompt is found."""
    fault = Fault("token", "model.layers.0.mlp.up_proj", 0, 0, 1.3)
    target, golden = pair(tmp_path, LAYOUTS["packed"], fault=fault, style=Style("npy"))
    mask = np.ones((3, 7), np.int64)
    mask[:, :2] = 0
    np.save(golden / "step0" / "rank0" / "lm_head.input.1.npy", mask)
    root = npucmp.compare(target, golden).roots[0]
    assert (root.request, root.position) == (0, 0) and fault.path in root.pair.golden_op.name


def test_memory_does_not_grow_with_the_pairs_of_padding(tmp_path):
    """1,503 tokens of padding on each side have one id: 2.3 million pairs, of which each tensor would need 160 MB."""
    wide = [layouts.padded(LENGTHS, ORDER, left=left, wide=500) for left in (False, True)]
    dumps = pair(tmp_path, *wide, style=Style("L0", extras=True, ending="npy"))
    tracemalloc.start()
    report = npucmp.compare(*dumps, precheck=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.exit_status == 0 and report.tokens.tokens == 18 and peak < 100e6


def test_a_file_is_opened_once_for_all_its_requests(tmp_path, monkeypatch):
    """Three requests of a padded golden are three places of each file, which a few passes read."""
    from npucmp.dump.readers import values

    opened = []
    monkeypatch.setattr(values, "open_regular", lambda *given: opened.append(str(given[0])) or open_regular(*given))
    npucmp.compare(*pair(tmp_path, LAYOUTS["packed"], style=Style("npy", extras=True)))
    assert 0 < max(Counter(opened).values()) <= 6


def test_a_step_that_cannot_be_read_is_reported(tmp_path):
    dumps = pair(tmp_path, LAYOUTS["packed"] * 2, PADDED * 2, style=Style("L0", extras=True))
    (dumps[0] / "step1" / "rank0" / "dump.json").write_text("{")
    report = npucmp.compare(*dumps)
    assert report.exit_status == 2 and [run.step for _, run in report.broken] == [1]
    assert report.tokens.tokens == 18


def test_steps_are_paired_by_number(tmp_path):
    dumps = pair(tmp_path, LAYOUTS["packed"] * 3, PADDED * 3, style=Style("L0", extras=True))
    (dumps[1] / "step0").rename(dumps[1] / "step3")
    report = npucmp.compare(*dumps)
    assert [one.step for one in report.comparisons] == [1, 2] and report.exit_status == 2
    assert [(side, alone.step) for side, alone in report.unpaired] == [("target", 0), ("golden", 3)]


def test_a_step_of_equal_layouts_is_compared_as_a_whole_beside_another(tmp_path):
    both = LAYOUTS["packed"]
    report = npucmp.compare(*pair(tmp_path, both * 2, PADDED + both, style=Style("L0", extras=True)))
    assert report.exit_status == 0 and report.tokens.tokens == 18 and len(report.comparisons) == 2


def test_a_first_operator_without_tokens_does_not_decide(tmp_path):
    """Both sides begin with a table of frequencies, of one shape."""
    dumps = pair(tmp_path, LAYOUTS["packed"], style=Style("L0", extras=True, ending="npy"))
    table = np.linspace(1.0, 0.1, 8, dtype=np.float32)[None]
    name = "Module.model.frequencies.Frequencies.forward.0"
    for dump in dumps:
        folder = dump / "step0" / "rank0"
        record = json.loads((folder / "dump.json").read_text())
        leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1, 8], "data_name": f"{name}.output.0.npy"}
        np.save(folder / "dump_tensor_data" / leaf["data_name"], table)
        record["data"] = {name: {"input_args": [], "input_kwargs": {}, "output": [leaf]}, **record["data"]}
        (folder / "dump.json").write_text(json.dumps(record))
    report = npucmp.compare(*dumps)
    assert report.tokens.tokens == 18 and not report.roots


def with_tensors(folder, files):
    for name, values in files.items():
        np.save(folder / "step0" / "rank0" / f"model.layers.{name}.npy", values)


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_an_output_without_tokens_is_covered_if_a_later_operator_reads_it(tmp_path, dtype):
    """Tensors of other shapes on both sides, as caches and block tables: an input with the values of the output reads
    it, one with its shape alone does not."""
    for number, is_read in enumerate((True, False)):
        dumps = pair(tmp_path / str(number), LAYOUTS["packed"], style=Style("npy", extras=True))
        for dump, rows in zip(dumps, (3, 4)):
            made = (np.arange(rows * 4).reshape(rows, 4) * 1.25 + 7).astype(dtype)
            given = made if is_read else made + 1
            with_tensors(dump, {"0.mlp.up_proj.output.1": made, "1.mlp.up_proj.input.1": given})
        report = npucmp.compare(*dumps)
        assert report.exit_status == (0 if is_read else 2) and not report.roots


def changed(trap):
    """The tokens of a packed target that lacks or exchanges some."""
    tokens = LAYOUTS["packed"][0].tokens
    if trap == "lost request":
        return tokens[tokens[:, 0] != 1]
    if trap == "lost token":
        return tokens[:-1]
    if trap == "exchanged":
        return tokens[[1, 0, *range(2, len(tokens))]]
    return np.concatenate([tokens[:3], [[PADDING, 0]], tokens[3:]])


@pytest.mark.parametrize("last", [VOCABULARY - 1, 0])
def test_last_tokens_with_an_id_of_their_own_are_no_padding(tmp_path, last):
    """The tokens that end two of three requests differ in each operator behind the embedding."""

    def change(path, arrays):
        if "embed_tokens" not in path:
            for one in arrays[1:]:
                one[-1] *= 1.5
        return arrays

    generator, network = np.random.default_rng(5), Network(5, "float32")
    ids = [generator.integers(1, VOCABULARY - 1, 6) for _ in range(3)]
    ids[1][-1] = ids[2][-1] = last
    padding = network.run([np.zeros(9, np.int64)], True)
    lengths, style = [6] * 3, Style("L0")
    for side, turned, records in (
        ("target", True, network.run(ids, False, change)),
        ("golden", False, network.run(ids, True)),
    ):
        write(tmp_path / side, layouts.padded(lengths, ORDER, turned=turned), records, padding, style, False)
    assert npucmp.compare(tmp_path / "target", tmp_path / "golden").exit_status != 0


def test_padding_without_a_mask_or_lengths_is_proven_by_its_id_and_by_values(tmp_path):
    report = npucmp.compare(*pair(tmp_path, LAYOUTS["packed"]))
    assert report.exit_status == 0 and not report.roots and report.tokens.tokens == 18
    assert report.tokens.padding == "padded right (one id, which no token reads)"


def test_a_mask_without_a_name_proves_no_padding(tmp_path):
    """The target lost the last token of each request, which such a mask hides."""
    tokens = LAYOUTS["packed"][0].tokens
    lost = tokens[:, 1] == np.array(LENGTHS)[tokens[:, 0]] - 1
    target, golden = pair(tmp_path, [Step(tokens[~lost])], style=Style("npy"))
    mask = np.array([[1] * (length - 1) + [0] * (8 - length) for length in LENGTHS])
    np.save(golden / "step0" / "rank0" / "lm_head.input.1.npy", mask)
    assert npucmp.compare(target, golden).exit_status == 2


@pytest.mark.parametrize("extras", [True, False])
@pytest.mark.parametrize("trap", ["lost request", "lost token", "exchanged", "inner padding"])
def test_a_target_that_lacks_or_exchanges_tokens_never_agrees(tmp_path, trap, extras):
    report = npucmp.compare(*pair(tmp_path, [Step(changed(trap))], style=Style("L0", extras=extras)))
    assert report.exit_status != 0


def test_a_row_of_another_id_is_no_token(tmp_path):
    generator = np.random.default_rng(3)
    ids = [generator.integers(1, VOCABULARY, length) for length in LENGTHS]
    ids[2][4] = ids[2][4] % (VOCABULARY - 1) + 1
    report = npucmp.compare(*pair(tmp_path, LAYOUTS["packed"], ids=ids, style=Style("L0", extras=True)))
    assert report.exit_status != 0 and "request 2, position 4" in " ".join(report.notes)


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


def test_recomputation_of_all_operators_is_refused_in_a_note(tmp_path):
    report = npucmp.compare(*pair(tmp_path, LAYOUTS["packed"], style=Style("L0", extras=True)), recompute="all")
    assert "--recompute all has no effect" in " ".join(report.notes)


def test_facts_are_those_of_all_steps(tmp_path):
    report = npucmp.compare(*pair(tmp_path, LAYOUTS["packed"] * 2, PADDED * 2, style=Style("L0", extras=True)))
    assert (report.tokens.tokens, report.tokens.requests) == (36, 6) and report.tokens.lengths == (7, 5, 6) * 2


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
