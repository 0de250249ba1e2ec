"""The readers of log-probabilities: any content gives a result or an error of npucmp, and values are those written."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import npucmp
from npucmp.dump.limits import ReadContext
from npucmp.dump.log_probs import field_names, read_recordings
from npucmp.errors import NpucmpError
from tests.corpus.parity.files import torch_file

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 1 << 40), st.floats(width=32), st.sampled_from(["token_id:7", "x", ""])
)
NAMES = st.sampled_from(
    [*sorted(field_names.KNOWN), *field_names.WRAPPERS, "choices", "outputs", "logprobs", "content", "token", "logprob",
     "meta_info", "output_token_logprobs", "output_top_logprobs", "samples", "completion_tokens"]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda below: st.lists(below, max_size=4) | st.dictionaries(NAMES, below, max_size=5), max_leaves=25
)
RECORDS = st.dictionaries(NAMES, VALUES, min_size=1, max_size=6)
ARRAYS = st.builds(
    lambda shape, kind: np.zeros(shape, kind),
    st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), st.sampled_from(["f4", "f8", "i8", "i4"]),
)  # fmt: skip
QUICK = settings(max_examples=50, deadline=None)
CONTEXT = ReadContext()


def is_refused_or_answered(name, data):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, name)
        file.write_bytes(data)
        try:
            result = npucmp.parity(file, file)
            assert result.exit_status in (0, 1, 2) and str(result) and result.to_dict()
        except NpucmpError:
            pass


@QUICK
@given(st.lists(RECORDS, min_size=1, max_size=3))
def test_any_json_lines(records):
    is_refused_or_answered("a.jsonl", "\n".join(map(json.dumps, records)).encode())


@QUICK
@given(st.dictionaries(NAMES, VALUES | ARRAYS | st.lists(ARRAYS, max_size=3), min_size=1, max_size=6))
def test_any_value_of_torch_save(value):
    is_refused_or_answered("a.pt", torch_file(clipped(value)))


def clipped(value):
    """The same with integers that the writer of the test has an opcode for."""
    if isinstance(value, dict):
        return {key: clipped(one) for key, one in value.items()}
    if isinstance(value, list):
        return [clipped(one) for one in value]
    return value % (1 << 31) if type(value) is int else value


@QUICK
@given(st.dictionaries(NAMES.filter(lambda name: "/" not in name), ARRAYS, min_size=1, max_size=6))
def test_any_arrays(arrays):
    with tempfile.TemporaryDirectory() as folder:
        for name, array in arrays.items():
            np.save(Path(folder, f"{name}.npy"), array)
        try:
            assert npucmp.parity(folder, folder).exit_status in (0, 1, 2)
        except NpucmpError:
            pass


@QUICK
@given(st.lists(RECORDS, min_size=1, max_size=4))
@example([{"action_ranges": [], "actor_log_probs": 0}])  # ranges beside a sum, whose tokens nothing counts
def test_any_events(records):
    is_refused_or_answered("a.sse", "\n\n".join(f"data: {json.dumps(record)}" for record in records).encode())


@QUICK
@given(st.binary(max_size=200), st.sampled_from(["a.npy", "a.npz", "a.pt", "a.json", "a.jsonl"]))
def test_any_bytes(data, name):
    is_refused_or_answered(name, data)


@QUICK
@given(
    st.lists(st.lists(st.floats(-50, 0), min_size=1, max_size=9), min_size=1, max_size=4),
    st.sampled_from(
        ["sglang", "vllm", "chat", "slime", "records", "objects", "fixture", "lists", "lists of one", "events",
         "events of all", "events of chat"]
    ),
)  # fmt: skip
def test_values_are_those_that_were_written(rows, spelling):
    lines = [line for at, row in enumerate(rows) for line in written(spelling, row, at)]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.jsonl").write_text("\n".join(lines))
        found = read_recordings(str(Path(folder, "a.jsonl")), (field_names.ROLLOUT,), CONTEXT)[0]
    requests = [one for batch in found.batches for one in batch.requests]
    assert [one.log_probs.tolist() for one in requests] == rows
    assert all(one.ids is None or one.ids.tolist() == [*range(len(row))] for one, row in zip(requests, rows))
    assert spelling in ("records",) or all(one.ids is not None for one in requests)


def written(spelling, row, at):
    """The lines of a request; events are parts of it."""
    if not spelling.startswith("events"):
        return [json.dumps(spelled(spelling, row))]
    parts = []
    for place in range(len(row)):
        part = slice(0 if spelling == "events of all" else place, place + 1)
        record = spelled({"events of all": "sglang", "events": "vllm", "events of chat": "chat"}[spelling], row, part)
        record.get("meta_info", record)["id"] = f"answer {at}"
        record.get("meta_info", {})["completion_tokens"] = place + 1
        parts.append("data: " + json.dumps(record) + "\n")
    return [*parts, "data: [DONE]"]


def spelled(spelling, row, part=slice(None)):
    ids = [*range(len(row))][part]
    row = row[part]
    if spelling == "objects":
        return {"meta_info": {"output_token_logprobs": [{"token_id": at, "logprob": one} for at, one in zip(ids, row)]}}
    if spelling == "fixture":
        return [ids, "text", [{str(at): {"logprob": one}, "99": {"logprob": -60.0}} for at, one in zip(ids, row)]]
    if spelling.startswith("lists"):
        more = [] if spelling == "lists of one" else [-60.0]
        beside = [99] * len(more)
        lists = [[*more, one] for one in row], [[*beside, at] for at in ids]
        return {"completion_ids": ids, "logprobs": lists[0], "logprob_token_ids": lists[1]}
    if spelling == "sglang":
        return {"meta_info": {"output_token_logprobs": [[value, at, None] for at, value in zip(ids, row)]}}
    if spelling == "vllm":
        return {"choices": [{"logprobs": {"token_logprobs": row, "tokens": [f"token_id:{at}" for at in ids]}}]}
    if spelling == "chat":
        content = [{"token": f"token_id:{at}", "logprob": value} for at, value in zip(ids, row)]
        return {"choices": [{"logprobs": {"content": content}}]}
    if spelling == "slime":
        return {"tokens": [9, 9, *ids], "response_length": len(row), "rollout_log_probs": row}
    return {"log_probs": row}


def test_steps_and_ranks_of_names(tmp_path):
    for name in ("step_3/rank_1/a.jsonl", "step_3/rank_0/a.jsonl", "global_step_10/a.jsonl"):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"log_probs": [-float(len(name)), -1.0]}))
    found = read_recordings(str(tmp_path), (field_names.TRAINER,), CONTEXT)[0]
    assert [(one.step, len(one.requests)) for one in found.batches] == [(3, 2), (10, 1)]
    for name, step in (("5.jsonl", 5), ("step_6.jsonl", 6), ("rollout_7_1.jsonl", 7), ("step8.jsonl", 8)):
        file = tmp_path / name
        file.write_text(json.dumps({"log_probs": [-1.0, -2.0]}))
        assert read_recordings(str(file), (field_names.TRAINER,), CONTEXT)[0].batches[0].step == step


def test_ranks_in_the_names_of_arrays_are_joined(tmp_path):
    x = -np.random.default_rng(0).exponential(1, (4, 30))
    for side, name in (("r", "rollout_log_probs"), ("t", "old_log_probs")):
        (tmp_path / side).mkdir()
        for rank in range(2):
            np.save(tmp_path / side / f"{name}_3_{rank}.npy", x[2 * rank : 2 * rank + 2] - (side > "r" and not rank))
    found = npucmp.parity(tmp_path / "r", tmp_path / "t")
    assert (found.exit_status, found.figures.tokens) == (1, 120)
    np.save(tmp_path / "r" / "step3_rollout_log_probs.npy", x[:2])
    assert "of the same step and rank is in another file" in str(npucmp.parity(tmp_path / "r", tmp_path / "t").open)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    (tmp_path / "secret.jsonl").write_text('{"log_probs": [-1.0, -2.0]}')
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(NpucmpError, match="leads out of the dump"):
        npucmp.parity(tmp_path / "in", tmp_path / "in")


def test_lines_end_at_a_newline_alone_and_have_numbers(tmp_path):
    values = (-np.random.default_rng(0).exponential(1, 30)).tolist()
    line = json.dumps({"text": "a\u2028b\x85", "log_probs": values}, ensure_ascii=False)
    for name in ("r.jsonl", "t.jsonl"):
        (tmp_path / name).write_bytes(f"{line}\r\n\n{line}\n".encode())
    assert npucmp.parity(tmp_path / "r.jsonl", tmp_path / "t.jsonl").figures.tokens == 60
    (tmp_path / "t.jsonl").write_text(f"{line}\n\n{{oops\n", "utf-8")
    with pytest.raises(NpucmpError, match="not JSON: line 3: "):
        npucmp.parity(tmp_path / "r.jsonl", tmp_path / "t.jsonl")


def test_most_likely_tokens_of_a_whole_vocabulary(tmp_path):
    """40 positions of 40,000 tokens: all pairs of tokens would be 64 GB."""
    random = np.random.default_rng(0)
    logits = random.standard_normal((1, 40, 40_000)).astype(np.float32)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    order = random.permutation(logs.shape[-1])
    for name, ids in (("rollout_log_probs", slice(None)), ("old_log_probs", order)):
        every = np.broadcast_to(np.arange(logs.shape[-1]), logs.shape)[..., ids]
        arrays = {name: logs[..., 7], "topk_ids": every, "topk_log_probs": logs[..., ids]}
        np.savez(tmp_path / f"{name[0]}.npz", **arrays)
    assert npucmp.parity(tmp_path / "r.npz", tmp_path / "o.npz").verdict == "CLEAN"


def test_what_is_not_read_is_named(tmp_path):
    values = (-np.random.default_rng(0).exponential(1, 30)).tolist()
    record = {"log_probs": values}
    deep = Path(*"abcdefg")
    for side in "rt":
        (tmp_path / side / deep).mkdir(parents=True)
        lines = [record, {"error": "x"}, {"choices": [{"logprobs": {"token_logprobs": values}}, {"logprobs": None}]}]
        (tmp_path / side / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert npucmp.parity(tmp_path / "r", tmp_path / "t").exit_status == 2
    (tmp_path / "t" / deep).rmdir()
    (tmp_path / "r" / deep).rmdir()
    found = npucmp.parity(tmp_path / "r", tmp_path / "t")
    assert (found.exit_status, found.figures.tokens) == (0, 60)
    assert "2 records of the rollout hold no log-probabilities" in found.notes
    (tmp_path / "t" / "link").symlink_to(tmp_path / "r")
    assert "link: a link to a folder is not read" in npucmp.parity(tmp_path / "r", tmp_path / "t").open[0]


def test_requests_of_a_batch_file_are_paired_by_custom_id(tmp_path):
    rows = (-np.random.default_rng(0).exponential(1, (4, 30))).tolist()
    lines = [
        json.dumps({"id": f"batch_{at}", "custom_id": f"c{at}", "response": {"body": {"id": "x", "choices": [
            {"logprobs": {"token_logprobs": row}}]}}}) for at, row in enumerate(rows)
    ]  # fmt: skip
    for side, order in (("r", lines), ("t", lines[::-1])):
        (tmp_path / f"{side}.jsonl").write_text("\n".join(order))
    found = npucmp.parity(tmp_path / "r.jsonl", tmp_path / "t.jsonl")
    assert (found.verdict, found.steps[0].pairing) == ("CLEAN", "identity")


def test_one_folder_with_a_folder_for_each_side(tmp_path):
    values = -np.random.default_rng(0).exponential(1, (4, 30))
    for side, name in (("engine", "rollout_log_probs"), ("train", "old_log_probs")):
        (tmp_path / side / "step_1").mkdir(parents=True)
        np.save(tmp_path / side / "step_1" / f"{name}.npy", values)
    result = npucmp.parity(tmp_path)
    assert (result.verdict, result.figures.tokens, result.names) == (
        "CLEAN",
        120,
        ("rollout_log_probs", "old_log_probs"),
    )


def test_a_file_with_records_of_both_sides(tmp_path):
    values = (-np.random.default_rng(0).exponential(1, (4, 30))).tolist()
    names = "rollout_log_probs", "old_log_probs"
    records = [{name: [value - (name < "p") for value in row]} for row in values for name in names]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    result = npucmp.parity(tmp_path / "a.jsonl")
    assert (result.exit_status, result.figures.tokens, result.figures.mean_abs) == (1, 120, pytest.approx(1))


def test_an_array_that_is_named_alone_and_one_among_others(tmp_path):
    values = -np.random.default_rng(0).exponential(1, (4, 30))
    np.save(tmp_path / "npu.npy", values)
    np.save(tmp_path / "gpu.npy", values)
    result = npucmp.parity(tmp_path / "npu.npy", tmp_path / "gpu.npy")
    assert (result.verdict, result.figures.tokens) == ("CLEAN", 120)
    with pytest.raises(NpucmpError, match="holds no log-probabilities"):
        npucmp.parity(tmp_path, tmp_path)


@pytest.mark.parametrize(
    "paths",
    [("y.npy",), ("y.npy", "./y.npy"), ("y.npy", "link.npy"), ("in",), ("in", "./in"), ("in", "in/log_probs.npy")],
)
def test_numbers_are_never_compared_with_themselves(tmp_path, monkeypatch, paths):
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for name in ("y.npy", "in/log_probs.npy"):
        np.save(name, np.full((4, 30), -1.0))
    Path("link.npy").symlink_to("y.npy")
    with pytest.raises(NpucmpError, match="give the files of the trainer as second path"):
        npucmp.parity(*paths)


def test_a_tensor_dict_is_the_dict_of_its_state(tmp_path):
    """As torch.save writes an object: its class, which is not imported, and a state."""
    data = torch_file({"rollout_log_probs": np.full((2, 30), -1.0), "old_log_probs": np.full((2, 30), -1.0)})
    with zipfile.ZipFile(io.BytesIO(data)) as read:
        members = {name: read.read(name) for name in read.namelist()}
    start, end = b"\x80\x02", b"."
    inner = members["saved/data.pkl"][len(start) : -len(end)]
    made = b"ctensordict._td\nTensorDict\n)\x81}(X\x0b\x00\x00\x00_tensordict" + inner + b"ub"
    members["saved/data.pkl"] = start + made + end
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    assert npucmp.parity(tmp_path / "a.pt").figures.tokens == 60
