"""`npucmp parity`: classes, places, figures, what is left open, and every convention of files."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import npucmp
from npucmp.cli import npucmp as group
from npucmp.errors import DumpError, UsageError
from tests.corpus import constants
from tests.corpus.parity import cases
from tests.corpus.parity.__main__ import score
from tests.corpus.parity.files import torch_file

SAMPLE = Path(__file__).parents[2] / "sample_dumps" / "parity_temperature"
ROWS, WIDTH = 6, 60


def log_probs(seed=0, rows=ROWS, width=WIDTH):
    """Log-probabilities as of a language model: some tokens nearly certain, some open."""
    return -(np.random.default_rng(seed).exponential(0.8, (rows, width)) ** 1.5)


def noisy(values, floor=0.02, seed=1):
    """The same of another engine, whose logits are off by `floor`."""
    return values + floor * -np.expm1(values) * np.random.default_rng(seed).standard_normal(values.shape)


def write(folder, **arrays):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", np.asarray(array))
    return folder


def pair(tmp_path, x, y, mask=None, ids=None, other_ids=None, other_mask=None):
    """The result of two recordings in verl's arrays."""
    mask = np.ones(x.shape, np.int64) if mask is None else mask
    more = [{} if one is None else {"responses": one} for one in (ids, ids if other_ids is None else other_ids)]
    a = write(tmp_path / "r", rollout_log_probs=x, response_mask=mask, **more[0])
    b = write(tmp_path / "t", old_log_probs=y, response_mask=mask if other_mask is None else other_mask, **more[1])
    return npucmp.parity(a, b)


def said(result):
    first = result.findings[0] if result.findings else None
    return result.token_class.value, None if first is None else (first.step, first.request, first.position)


def invoke(*words):
    return CliRunner().invoke(group, ["parity", *map(str, words)])


def test_noise_is_clean_and_its_figures_are_those_of_numpy(tmp_path):
    x = log_probs()
    y = noisy(x)
    mask = np.arange(WIDTH) < np.array([60, 50, 40, 60, 30, 20])[:, None]
    result = pair(tmp_path, x, y, mask.astype(np.int64))
    assert (result.verdict, result.exit_status, result.findings) == ("CLEAN", 0, ())
    d, p, q = (x - y)[mask], np.exp(x[mask]), np.exp(y[mask])
    found = result.figures
    assert found.tokens == mask.sum()
    expected = abs(d).mean(), abs(d).max(), d.mean(), (np.exp(-d) - 1 + d).mean(), abs(p - q).mean()
    assert np.allclose(found[1:6], expected, rtol=1e-9) and found.pearson == pytest.approx(np.corrcoef(p, q)[0, 1])
    beyond = abs(d) > 3 * (1.4 * 0.06 * (1 - np.exp(np.minimum(x, y)[mask])) + 0.002)
    assert found.share_beyond == beyond.mean() == 0


def rows(result):
    table = result.to_pandas("parity")
    return table.to_dict("records")


def test_one_token_is_no_class_and_not_silent(tmp_path):
    y = noisy(log_probs())
    y[1, 7] -= 6.0
    result = pair(tmp_path, log_probs(), y)
    assert (result.verdict, result.exit_status) == ("UNDECIDED", 2)
    assert "1 of 360 tokens are beyond 12 times the noise" in str(result)


def test_another_number_of_the_same_tokens(tmp_path):
    x = log_probs()
    y = noisy(x)
    numbers = np.repeat(x.mean(1, keepdims=True), WIDTH, 1), np.cumsum(x, 1), -x, np.exp(x), np.zeros_like(x)
    for number, values in enumerate(numbers):
        assert said(pair(tmp_path / str(number), values, y, ids=np.ones(x.shape, int)))[0] == "record"


def test_the_sum_against_the_mean_and_equal_sums(tmp_path):
    x = log_probs()
    mask = np.ones(x.shape, np.int64)
    a = write(tmp_path / "a", rollout_log_probs=x.sum(1), response_mask=mask)
    b = write(tmp_path / "b", old_log_probs=noisy(x).sum(1) / WIDTH, response_mask=mask)
    c = write(tmp_path / "c", old_log_probs=noisy(x), response_mask=mask)
    found = npucmp.parity(a, b)
    assert said(found) == ("sum_mean", (None, 0, None)) and "rollout has the sum" in str(found)
    assert npucmp.parity(a, c).verdict == "CLEAN"
    other = write(tmp_path / "d", old_log_probs=noisy(x).sum(1) * 1.3, response_mask=mask)
    assert npucmp.parity(a, other).exit_status == 1


def test_means_on_both_sides_have_less_noise_than_sums(tmp_path):
    x = log_probs()
    mask = np.ones(x.shape, np.int64)
    sides = [("rollout_log_probs", x), ("old_log_probs", noisy(x)), ("old_log_probs", noisy(x) - 0.1)]
    for number, (name, values) in enumerate(sides):
        for of, one in (("mean", values.mean(1)), ("sum", values.sum(1))):
            write(tmp_path / f"{of}{number}", **{name: one}, response_mask=mask)
    for of in ("mean", "sum"):
        assert npucmp.parity(tmp_path / f"{of}0", tmp_path / f"{of}1").verdict == "CLEAN"
        result = npucmp.parity(tmp_path / f"{of}0", tmp_path / f"{of}2")
        assert result.exit_status == (2 if of == "mean" else 1), result
    means = [[{"log_probs": one + 0.1 * side} for one in x.mean(1).tolist()] for side in range(2)]
    assert json_pair(tmp_path, *means).exit_status == 2  # of responses whose length is not recorded


def test_most_likely_tokens_make_a_temperature_exact(tmp_path):
    """0.8 % in temperature, below the noise of the sampled tokens."""
    random = np.random.default_rng(3)
    logits = random.standard_normal((ROWS, WIDTH, 50)) * 3

    def logs(values):
        return values - np.log(np.exp(values).sum(-1, keepdims=True))

    sides = {"r": logs((logits + 0.05 * random.standard_normal(logits.shape)) / 1.008), "t": logs(logits)}
    ids = np.argmax(sides["r"] + random.gumbel(size=logits.shape), -1)
    top = np.argsort(-sides["r"], -1)[..., :8]
    names = {"r": "rollout_log_probs", "t": "old_log_probs"}
    for tops, expected in ((True, ("TEMPERATURE", 1)), (False, ("CLEAN", 0))):
        paths = []
        for side, one in sides.items():
            arrays = {names[side]: np.take_along_axis(one, ids[..., None], -1)[..., 0]}
            if tops:
                arrays.update(topk_ids=top, topk_log_probs=np.take_along_axis(one, top, -1))
            paths.append(write(tmp_path / f"{side}{tops}", **arrays))
            file = paths[-1].with_suffix(".json")
            file.write_text(json.dumps({name.replace("topk", "top"): one.tolist() for name, one in arrays.items()}))
        for both in (paths, [one.with_suffix(".json") for one in paths]):
            result = npucmp.parity(*both)
            assert (result.verdict, result.exit_status) == expected
    assert "temperature 1.00" in str(npucmp.parity(tmp_path / "rTrue", tmp_path / "tTrue"))


def test_noise_that_grows_over_steps_is_of_weights(tmp_path):
    for step in range(4):
        x = log_probs(step)
        write(tmp_path / "r" / f"step_{step}", rollout_log_probs=x)
        write(tmp_path / "t" / f"step_{step}", old_log_probs=noisy(x, 0.006 * (1 + 2 * step), step + 50))
    result = npucmp.parity(tmp_path / "r", tmp_path / "t")
    assert result.token_class.value == "weights" and "grows" in result.trend
    assert "a stale or corrupted synchronisation" in str(result)
    steps = {row["step"]: row["class"] for row in rows(result) if np.isnan(row["request"])}
    assert steps[result.findings[0].step] == "weights" and [*steps.values()].count("weights") == 1
    assert npucmp.parity(tmp_path / "r", tmp_path / "t", step="0").verdict == "CLEAN"


def test_a_floor_of_the_user_decides(tmp_path):
    x = log_probs()
    pair(tmp_path, x, noisy(x, 0.03))
    paths = tmp_path / "r", tmp_path / "t"
    assert npucmp.parity(*paths).verdict == "CLEAN"
    assert npucmp.parity(*paths, floor=0.003).verdict == "DIFFERS"
    for wrong in (0, -1, float("nan")):
        with pytest.raises(UsageError, match="greater than 0"):
            npucmp.parity(*paths, floor=wrong)


def test_steps_of_other_numbers_are_paired_with_a_note(tmp_path):
    x = log_probs()
    a = write(tmp_path / "r" / "step_1", rollout_log_probs=x)
    b = write(tmp_path / "t" / "step_5", old_log_probs=x)
    result = npucmp.parity(a.parent, b.parent)
    assert "step 1 of the rollout is paired with step 5 of the trainer" in result.notes


def test_a_pair_without_noise_suggests_no_floor_of_0_and_less_than_100_percent(tmp_path):
    x = log_probs(rows=ROWS * 10)
    y = x.copy()
    y[2, 17] = -30.0
    result = pair(tmp_path, x, y)
    assert result.exit_status == 2 and "--floor" not in str(result)
    y = x - 20
    y[0, 0] = x[0, 0]
    assert "beyond noise 99 %" in str(pair(tmp_path, x, y))


def test_the_report_of_a_clean_pair_is_a_floor(tmp_path):
    x = log_probs()
    result = pair(tmp_path, x, noisy(x, 0.004))
    npucmp.write_reports(result, tmp_path / "clean")
    npucmp.write_reports(pair(tmp_path, x, np.roll(x, 1, 1)), tmp_path / "shift")
    pair(tmp_path, x, noisy(x, 0.03))
    paths = tmp_path / "r", tmp_path / "t"
    found = npucmp.parity(*paths, floor=tmp_path / "clean")
    assert found.verdict == "DIFFERS" and found.floor == result.figures.floor
    got = invoke(*paths, "--floor", tmp_path / "clean" / "summary.json")
    assert got.exit_code == 1 and "DIFFERS" in got.output
    for wrong, words in ((tmp_path / "shift", "not the report of a clean pair"), ("nothing", "neither a number nor")):
        with pytest.raises(UsageError, match=words):
            npucmp.parity(*paths, floor=wrong)


def test_requests_and_steps_without_a_partner_are_open(tmp_path):
    x = log_probs()
    a, b = write(tmp_path / "r" / "step_0", rollout_log_probs=x), write(tmp_path / "t" / "step_0", old_log_probs=x[:4])
    found = npucmp.parity(a, b)
    assert (found.verdict, found.exit_status) == ("UNDECIDED", 2) and found.open == (
        "only the rollout has requests 4, 5",
    )
    write(tmp_path / "t" / "step_0", old_log_probs=noisy(x))
    write(tmp_path / "t" / "step_1", old_log_probs=x)
    found = npucmp.parity(tmp_path / "r", tmp_path / "t" / "step_0")
    assert found.verdict == "CLEAN"
    write(tmp_path / "r" / "step_2", rollout_log_probs=x)
    found = npucmp.parity(tmp_path / "r", tmp_path / "t")
    assert found.open == ("only the rollout has step 2", "only the trainer has step 1") and found.exit_status == 2


def test_not_computed_is_not_agreement(tmp_path):
    x = log_probs()
    np.savez(tmp_path / "both.npz", rollout_log_probs=x, old_log_probs=x, valid=np.array(0))
    found = npucmp.parity(tmp_path / "both.npz")
    assert found.exit_status == 2 and "not computed, by the flag valid" in str(found)
    np.savez(tmp_path / "both.npz", rollout_log_probs=x, old_log_probs=x, valid=np.array(1))
    assert npucmp.parity(tmp_path / "both.npz").exit_status == 0
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1, "training/rollout_probs_diff_valid": 0, "training/rollout_probs_diff_mean": 0.0}\n')
    with pytest.raises(DumpError, match="metrics of verl, not log-probabilities"):
        npucmp.parity(metrics, metrics)


def test_paths_that_are_exchanged_and_identities_that_cannot_be_read(tmp_path):
    x = log_probs()
    np.savez(tmp_path / "r.npz", rollout_log_probs=x, index=np.array([f"a{at}" for at in range(ROWS)], object))
    np.savez(tmp_path / "t.npz", old_log_probs=noisy(x))
    assert npucmp.parity(tmp_path / "r.npz", tmp_path / "t.npz").verdict == "CLEAN"
    assert "seem to be exchanged" in str(npucmp.parity(tmp_path / "t.npz", tmp_path / "r.npz"))


def json_pair(tmp_path, first, second):
    """The result of two lists of records."""
    for side, records in (("r", first), ("t", second)):
        (tmp_path / f"{side}.jsonl").write_text("\n".join(map(json.dumps, records)))
    return npucmp.parity(tmp_path / "r.jsonl", tmp_path / "t.jsonl")


def test_a_request_too_long_for_memory_is_open_and_padding_takes_none(tmp_path):
    short = [{"log_probs": [-1.0, -2.0, -0.5]}] * 3000
    long = {"log_probs": [-1.0] * 50_000}
    result = json_pair(tmp_path, [long, *short], [long, *short])
    assert (result.exit_status, result.figures.tokens) == (2, 9000)
    assert result.open == ("request 0: too long to be compared beside so many requests",)
    x = np.pad(log_probs(), ((0, 0), (0, 500_000)))
    mask = np.pad(np.ones((ROWS, WIDTH), np.int8), ((0, 0), (0, 500_000)))
    result = pair(tmp_path, x, x, mask)
    assert (result.exit_status, result.figures.tokens, result.steps[0].positions.tolist()) == (0, 360, [*range(WIDTH)])


def test_requests_without_a_counted_token_are_open_beside_sums(tmp_path):
    values = log_probs()[0].tolist()
    total = {"log_probs": sum(values), "response_length": WIDTH}
    result = json_pair(tmp_path, [total, {"log_probs": values, "loss_mask": [0] * WIDTH}], [
        {"log_probs": values}, {"log_probs": [one - 1 for one in values], "loss_mask": [0] * WIDTH}])  # fmt: skip
    assert (result.exit_status, result.open) == (2, ("request 1: no token counts on either side",))


@pytest.mark.parametrize("names", [("response_mask", "token_ids"), ("loss_mask", "responses")])
def test_a_mask_that_is_too_short_is_open(tmp_path, names):
    values = log_probs()[0].tolist()
    mask, ids = names
    first, second = {"log_probs": values, mask: [1] * (WIDTH - 1)}, {"log_probs": values, ids: [7] * WIDTH}
    because = ("request 0: the mask has fewer places than the log-probabilities",)
    assert json_pair(tmp_path, [first], [second]).open == because
    assert json_pair(tmp_path, [{key: [one] for key, one in first.items()}], [second]).open == because
    x = log_probs()
    found = pair(tmp_path, x, x, np.ones((ROWS - 1, WIDTH), np.int64), other_mask=np.ones(x.shape, np.int64))
    assert found.open == (because[0].replace("0", "5"),)


IDS = [*range(WIDTH)]
OTHER = [*IDS[:-1], 999]


@pytest.mark.parametrize(
    "fields, status, words",
    [
        ({"responses": "a text", "token_ids": OTHER}, 1, "token 59 in the rollout, 999 in the trainer"),
        ({"responses": [1, 2], "token_ids": OTHER}, 1, "token 59 in the rollout, 999 in the trainer"),
        ({"token_ids": [float(one) for one in OTHER]}, 1, "token 59 in the rollout, 999 in the trainer"),
        ({"token_ids": OTHER[1:]}, 0, "trainer: ids that are no numbers, or of another length"),
        ({"token_ids": [0.5] * WIDTH}, 0, "trainer: ids that are no numbers, or of another length"),
        ({"tokens": ["a"] * WIDTH}, 0, "the ids are not compared: one side has numbers, the other texts"),
    ],
)  # fmt: skip
def test_ids_are_used_or_a_note(tmp_path, fields, status, words):
    values = log_probs()[0].tolist()
    result = json_pair(tmp_path, [{"log_probs": values, "token_ids": IDS}], [{"log_probs": values, **fields}])
    assert result.exit_status == status and words in str(result)
    answer = {"logprobs": {"token_logprobs": values, "tokens": fields.get("tokens", fields.get("token_ids"))}}
    for ids in ({}, {"token_ids": [1, 2]}, {"token_ids": [5, *IDS]}, {"token_ids": "abc"}):
        result = json_pair(tmp_path, [{"log_probs": values, "token_ids": IDS}], [{"choices": [{**answer, **ids}]}])
        assert result.exit_status == status and words in str(result)


def test_most_likely_tokens_that_are_left_out_are_a_note(tmp_path):
    values = log_probs()[0].tolist()
    for top in ([1] * WIDTH, [[1, 2]] * (WIDTH - 1)):
        first = {"log_probs": values, "top_ids": top, "top_log_probs": top}
        result = json_pair(tmp_path, [first], [{"log_probs": values}])
        assert "rollout: most likely tokens of another form than (positions, k) are left out" in result.notes


def test_requests_in_another_order_are_paired_by_their_tokens(tmp_path):
    x, ids = log_probs(), np.random.default_rng(2).integers(0, 900, (ROWS, WIDTH))
    order = [3, 0, 5, 1, 4, 2]
    a = write(tmp_path / "a", rollout_log_probs=x, responses=ids)
    b = write(tmp_path / "b", old_log_probs=noisy(x)[order], responses=ids[order])
    result = npucmp.parity(a, b)
    assert result.verdict == "CLEAN" and "paired by tokens" in " ".join(result.notes)
    alone = write(tmp_path / "c", old_log_probs=noisy(x)[order], responses=ids)
    assert npucmp.parity(a, alone).exit_status == 1


def test_chat_and_offline_answers(tmp_path):
    values = log_probs()[0]
    chat = {"choices": [{"logprobs": {"content": [{"token": f"t{at}", "logprob": float(one), "top_logprobs": []}
                                                  for at, one in enumerate(values)]}}]}  # fmt: skip
    offline = {"outputs": [{"token_ids": [*range(WIDTH)], "cumulative_logprob": float(values.sum()),
                            "logprobs": [{str(at): {"logprob": float(one), "rank": 1}}
                                         for at, one in enumerate(values)]}]}  # fmt: skip
    batch = {"custom_id": "a", "response": {"status_code": 200, "body": chat}}
    for name, one in (("chat", chat), ("offline", offline), ("batch", batch)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(one) + "\n")
    for name in ("offline", "batch"):
        result = npucmp.parity(tmp_path / "chat.jsonl", tmp_path / f"{name}.jsonl")
        assert result.verdict == "CLEAN" and result.figures.tokens == WIDTH


def test_the_command(tmp_path):
    got = invoke(SAMPLE / "rollout", SAMPLE / "trainer", "-o", tmp_path / "out")
    assert (
        got.exit_code == 1 and "TEMPERATURE: the sides use another temperature, first bad token: step 1" in got.output
    )
    assert "next: npucmp precheck - - --config" in got.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    keys = [summary[name] for name in ("class", "step", "request", "position", "exit_status")]
    assert keys == ["temperature", 1, 0, 0, 1] and summary["next"][0]["command"].startswith("npucmp ")
    lines = (tmp_path / "out" / "parity.csv").read_text().splitlines()
    assert lines[0].startswith("step,request,position,token,target,golden,difference,noise,beyond,class")
    assert len(lines) == 1 + 3 * (1 + 12)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Difference over steps" in page and "Mean |d| over positions" in page
    clean = invoke(SAMPLE / "rollout", SAMPLE / "trainer", "--step", 0, "--json")
    found = json.loads(clean.output)
    assert clean.exit_code == 0 and (found["class"], found["step"], found["request"]) == ("clean", "", "")
    for words in ((SAMPLE / "rollout", SAMPLE / "trainer", "--step", 7), (SAMPLE / "rollout",)):
        assert isinstance(invoke(*words).exception, UsageError)  # which cli.py ends with 2


def test_compare_refers_to_parity(tmp_path):
    for side in ("rollout", "trainer"):
        assert "npucmp parity compares them" in str(npucmp.compare(SAMPLE / side, SAMPLE / side))
    same = np.zeros((2, 3), np.float32)
    a, b = write(tmp_path / "r", rollout_log_probs=same), write(tmp_path / "t", old_log_probs=same)
    words = CliRunner().invoke(group, ["compare", str(a), str(b)])
    assert "npucmp parity compares them" in words.output + str(words.exception)
    with pytest.raises(DumpError, match="holds log-probabilities of tokens, not tensors; npucmp parity"):
        npucmp.compare(written(tmp_path / "a"), written(tmp_path / "b"))


def written(folder):
    folder.mkdir()
    (folder / "answers.jsonl").write_text('{"rollout_log_probs": [-1.0, -2.0]}\n')
    return folder


class Hostile:
    def __reduce__(self):
        return (print, ("executed",))


def test_pickles_are_not_executed(tmp_path, capfd):
    (tmp_path / "a.pt").write_bytes(pickle.dumps({"rollout_log_probs": Hostile()}))
    with pytest.raises(DumpError):
        npucmp.parity(tmp_path / "a.pt", tmp_path / "a.pt")
    body = torch_file({"rollout_log_probs": [[-1.0] * 30], "old_log_probs": [[-1.0] * 30], "other": None})
    call = b"c__builtin__\nprint\n(X\x08\x00\x00\x00executedtR"
    (tmp_path / "b.pt").write_bytes(body)
    hostile = torch_file_with(body, call)
    (tmp_path / "c.pt").write_bytes(hostile)
    assert npucmp.parity(tmp_path / "c.pt").verdict == "CLEAN"
    assert "executed" not in "".join(capfd.readouterr())


def torch_file_with(body, call):
    """The same file, with a call in place of None."""
    import io
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(body)) as read, zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in read.namelist():
            data = read.read(name)
            if name.endswith("data.pkl"):
                assert data.endswith(b"Nu.")
                data = data[:-3] + call + b"u."
            archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


def test_a_damaged_file_is_open_and_the_others_are_compared(tmp_path):
    x = log_probs()
    for step in range(2):
        write(tmp_path / "r" / f"step_{step}", rollout_log_probs=x)
        write(tmp_path / "t" / f"step_{step}", old_log_probs=noisy(x))
    file = tmp_path / "t" / "step_1" / "old_log_probs.npy"
    file.write_bytes(file.read_bytes()[:-40])
    found = npucmp.parity(tmp_path / "r", tmp_path / "t")
    assert found.exit_status == 2 and any("its header promises" in words for words in found.open)
    assert found.steps[0].finding.token_class.value == "clean"
    with pytest.raises(DumpError, match="no such file"):
        npucmp.parity(tmp_path / "nothing", tmp_path / "t")


@pytest.mark.large
def test_the_corpus_is_right():
    """Three pairs of each class; `python -m tests.corpus.parity SEED` has more."""
    for part in cases.PARTS:
        for kind, count in score(50, 3, part).items():
            assert count["right"] >= 2 and not count["agrees"] and not count["confused"], (kind, count)


def test_numbers_that_decide_have_a_unit_and_a_source():
    found = [
        constants.Constant(*place.constant(*one))
        for place in constants.modules()
        if place.name.startswith("npucmp.token_parity")
        and place.name.rpartition(".")[2] not in ("workflow", "report", "command")
        for one in place.statements
    ]
    assert len(found) > 60 and not [one for one in found if not one.unit or one.kind not in constants.SOURCES]


def by_ids(tmp_path, rollout, trainer):
    """The result of records: lists of (log-probabilities, ids, mask or None) of both sides."""
    for name, side, field in (("r", rollout, "rollout_log_probs"), ("t", trainer, "log_probs")):
        lines = [
            {field: list(values), "token_ids": list(map(int, ids)), **({} if mask is None else {"loss_mask": mask})}
            for values, ids, mask in side
        ]
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return npucmp.parity(tmp_path / "r", tmp_path / "t")


RESPONSES = np.random.default_rng(3).integers(0, 900, (ROWS, WIDTH)).tolist()
ROLLOUT = [(values, ids, None) for values, ids in zip(log_probs().tolist(), RESPONSES)]
TRAINER = noisy(log_probs()).tolist()
PROMPT = [901, 902, 903]


def test_a_token_in_front_that_counts_is_another_token(tmp_path):
    trainer = [([-3.0, *values], [901, *ids], None) for values, ids in zip(TRAINER, RESPONSES)]
    result = by_ids(tmp_path, ROLLOUT, trainer)
    assert said(result) == ("tokens", (None, 0, 0)) and "the other" not in str(result).split("TOKENS")[0]


@pytest.mark.parametrize("has_ids", [True, False])
def test_the_ranges_of_actions_are_a_mask(tmp_path, has_ids):
    """The rollout records whole sequences, with 0 for the prompt, or without the first token."""
    for shift in (0, 1):
        rollout = [
            {
                "observation_tokens": PROMPT + ids, "action_ranges": [[3, 30], [33, 3 + WIDTH]],
                "rollout_log_probs": ([0.0] * 3 + values)[shift:],
            }
            for values, ids in zip(log_probs().tolist(), RESPONSES)
        ]  # fmt: skip
        trainer = [
            {"log_probs": values, **({"token_ids": ids} if has_ids else {})} for values, ids in zip(TRAINER, RESPONSES)
        ]
        for record in trainer:
            record["loss_mask"] = [1] * 27 + [0] * 3 + [1] * (WIDTH - 30)
        result = json_pair(tmp_path, rollout, trainer)
        assert (result.verdict, result.figures.tokens) == ("CLEAN", ROWS * (WIDTH - 3))


def test_lists_without_the_sampled_id_are_refused(tmp_path):
    rollout = [{"completion_ids": [1, 2], "logprobs": [[-1.0, -2.0], [-1.0, -3.0]]}]
    with pytest.raises(DumpError, match="several numbers for a position, and no ids that say which was sampled"):
        json_pair(tmp_path, rollout, [{"log_probs": [-1.0, -2.0]}])
