"""Curves as programs log them: the same three values, whatever stands around them."""

import json
import struct

import numpy as np
import pytest

from npucmp.errors import DumpError, UsageError
from npucmp.health.curves.curve_pair import compare_curves
from npucmp.health.curves.log_reader import read_log

VALUES = (2.31, 2.25, float("nan"))
MEGATRON = (
    " iteration       {step}/     500 | consumed samples:           96 | learning rate: 1.5E-04 | lm loss: {value:E} |"
    " loss scale: 65536.0 | grad norm: 1.234 | number of nan iterations:   0 |"
)
TEXTS = {
    "megatron": MEGATRON,
    "trainer, with steps": "{{'loss': {value}, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'step': {step}}}",
    "mindspore": "epoch: 1 step: {step}, loss is {value}",
    "mindformers": "2026-11-22 15:41:12,123 - INFO - {{ Epoch:[  1/  2], step:[   {step}/ 4031], loss: {value}, "
    "per_step_time: 1234ms, lr: 1.2e-06, overflow cond: False, loss_scale: 65536.0, global_norm: [1.23]}}",
    "imagenet": "Epoch: [0][ {step}/500]\tTime 0.1 (0.2)\tLoss {value:.4e} (2.4000e+00)\tAcc@1 0.1",
    "openmmlab": "2026-11-22 - mmdet - INFO - Epoch [1][{step}/500]  lr: 1.0e-03, eta: 1 day, loss: {value}",
    "plain": "INFO step {step} loss {value}",
    "tensors": "step {step}: loss = tensor({value}, device='npu:0', grad_fn=<NllLossBackward0>)",
    "tqdm": "  1%|\u2588         | {step}/500 [00:03<00:20,  3.1it/s, loss={value}]",
    "a sentence": "[rank0] step: {step} current mean of the loss: {value} on /data/test/run.py",
    "csv": "{step},{value}",
    "json lines": '{{"step": {step}, "lr": 0.1, "loss": {value}, "note": "a"}}',
}
HEADS = {"csv": "Step,loss\n", "megatron": "training ...\n> loading 12 files\n"}


def text_of(kind):
    lines = [TEXTS[kind].format(step=10 * n, value=value) for n, value in enumerate(VALUES, 1)]
    text = "\n".join(lines).replace("nan", "NaN") if kind == "json lines" else "\n".join(lines)
    return HEADS.get(kind, "") + text


def expect(curve, steps=(10, 20, 30), values=VALUES):
    assert curve.steps.tolist() == list(steps)
    np.testing.assert_allclose(curve.values, values, rtol=1e-6)


TABLES = {
    "tabs": ("step\tloss\n10\t2.31\n20\t2.25\n30\tnan", (10, 20, 30)),
    "blanks": ("step loss\n10 2.31\n20 2.25\n30 nan", (10, 20, 30)),
    "no names": ("10,2.31\n20,2.25\n30,nan", (10, 20, 30)),
    "no steps": ("2.31\n2.25\nnan\n", (0, 1, 2)),
    "an export of TensorBoard": ("Wall time,Step,Value\n1.5,10,2.31\n2.5,20,2.25\n3.5,30,nan", (10, 20, 30)),
    "an export of wandb": ('"Step","run - train/loss","run - eval/acc"\n10,2.31,\n20,2.25,1\n30,nan,1', (10, 20, 30)),
    "a byte order mark": ("\ufeffstep;loss\n10;2.31\n20;2.25\n30;nan", (10, 20, 30)),
    "a cut line": ("step,loss\n10,2.31\n20,2.25\n30,nan\n40", (10, 20, 30)),
    "a state of Trainer": (
        json.dumps({"best": None, "log_history": [{"step": 10, "loss": 2.31}, {"step": 10, "eval_loss": 3.5},
                    {"step": 20, "loss": 2.25}, {"step": 30, "loss": float("nan")}]}), (10, 20, 30)),
    "a history of Keras": (json.dumps({"loss": [2.31, 2.25, float("nan")], "val_loss": [1, 2, 3]}), (0, 1, 2)),
    "a list": ("[2.31, 2.25, NaN]", (0, 1, 2)),
    "objects in objects": ('{"step": 1, "train": {"loss": 2.31}}\n{"step": 2, "train": {"loss": 2.25}}\n'
                           '{"step": 3, "train": {"loss": NaN}}\n{"step": 4, "tra', (1, 2, 3)),
    "a resumed run": ("step,loss\n10,2.31\n20,9\n30,9\n20,2.25\n30,nan", (10, 20, 30)),
    "steps that begin anew": ("epoch: 1 step: 1, loss is 2.31\nepoch: 1 step: 2, loss is 2.25\n"
                              "epoch: 2 step: 1, loss is nan", (1, 2, 3)),
    "epochs of Keras": ("Epoch 1/2\n1/2 [===>] - ETA: 3s - loss: 2.31 - val_loss: 3\n2/2 [==>] - loss: 2.25\n"
                        "Epoch 2/2\n1/2 [===>] - ETA: 3s - loss: nan", (1, 2, 3)),
    "evaluations between": ("step 1: loss 2.31\nvalidation loss at step 1 | lm loss value: 9.0E+00\nstep 2: loss 2.25\n"
                            "eval: step 2 average loss: 9\nstep 3: loss nan", (1, 2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
def test_tables_and_their_steps(tmp_path, kind):
    text, steps = TABLES[kind]
    (tmp_path / "log").write_text(text, encoding="utf-8")
    expect(read_log(tmp_path / "log").column(), steps)


def test_other_curves(tmp_path):
    (tmp_path / "log").write_text(text_of("megatron") + "\nvalidation loss at iteration 30 | lm loss value: 2.5E+00 |")
    log = read_log(tmp_path / "log")
    assert log.scale.values.tolist() == [65536] * 3
    assert (log.validation.steps.tolist(), log.validation.values.tolist()) == ([30], [2.5])
    assert log.column("grad norm").values.tolist() == [1.234] * 3
    with pytest.raises(UsageError, match="no column 'grad_norm'; nearest: grad norm"):
        log.column("grad_norm")


def test_a_table_of_the_monitor(tmp_path):
    (tmp_path / "grad.csv").write_text("vpp_stage,name,step,norm\n0,a,1,3\n0,b,1,4\n0,a,2,6\n0,b,2,8\n")
    expect(read_log(tmp_path / "grad.csv").column("norm"), (1, 2), (5, 10))


BAD = {
    "nothing": b"",
    "words": b"no number here\n",
    "bytes": bytes(range(256)),
    "deep JSON": b"[" * 100_000,
    "many columns": ("{" + ",".join(f'"c{n}": 1' for n in range(2000)) + "}").encode(),
    "a name of control characters": b"step\x1b[2J",
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_log_is_said(tmp_path, kind):
    (tmp_path / "log").write_bytes(BAD[kind])
    with pytest.raises(DumpError, match="log"):
        read_log(tmp_path / "log")


def field(number, wire, content):
    head = bytes([number << 3 | wire])
    return head + (bytes([len(content)]) + content if wire == 2 else content)


def records(*events):
    return b"".join(struct.pack("<Q", len(one)) + b"crc " + one + b"crc " for one in events)


def event(step, value):
    return field(1, 1, struct.pack("<d", 1.5)) + field(2, 0, bytes([step])) + field(5, 2, field(1, 2, value))


TAG = field(1, 2, b"loss")
FLOATS = {
    "tensorboard": lambda x: TAG + field(2, 5, struct.pack("<f", x)),
    "tensorboard, tensors": lambda x: TAG + field(8, 2, b"\x08\x01" + field(5, 2, struct.pack("<f", x))),
    "tensorboard, content": lambda x: TAG + field(8, 2, b"\x08\x02" + field(4, 2, struct.pack("<d", x))),
    "mindspore": lambda x: TAG + field(3, 5, struct.pack("<f", x)),
}  # fmt: skip
NAMES = {"mindspore": "a.out.events.summary.1582103413.host_MS"}


@pytest.mark.parametrize("kind", FLOATS)
def test_event_files(tmp_path, kind):
    file = tmp_path / NAMES.get(kind, "events.out.tfevents.1.host")
    file.write_bytes(
        records(b"\x1a\x0dbrain.Event:2", *(event(10 * n, FLOATS[kind](x)) for n, x in enumerate(VALUES, 1)))
    )
    for path in (file, tmp_path):
        expect(read_log(path).column())


def test_what_is_no_event_file(tmp_path):
    for data in (b"", b"\xff" * 100, records(b"\xff" * 20)):
        (tmp_path / "x.tfevents.1").write_bytes(data)
        with pytest.raises(DumpError):
            read_log(tmp_path / "x.tfevents.1")


def test_what_tensorboard_writes(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path))
    for n, value in enumerate(VALUES, 1):
        writer.add_event(
            Event(step=10 * n, summary=Summary(value=[Summary.Value(tag="train/loss", simple_value=value)]))
        )
    writer.close()
    expect(read_log(tmp_path).column())


PIECES = [
    b"nan",
    b"-inf",
    b"1e308",
    b"9" * 400,
    b"{",
    b"[",
    b",",
    b"\n",
    b":",
    b"loss",
    b"step",
    b"\0",
    b"\xff",
    b"null",
]


def test_damaged_logs_are_read_or_refused(tmp_path):
    """Whatever is put into a log: curves that can be judged, or an error that names the file."""
    drawn = np.random.default_rng(0)
    texts = [text_of(kind).encode() for kind in TEXTS] + [text.encode() for text, _ in TABLES.values()]
    for number in range(150):
        data = bytearray(texts[number % len(texts)])
        for at in sorted(drawn.integers(0, len(data), 4), reverse=True):
            data[at : at + drawn.integers(0, 6)] = PIECES[drawn.integers(len(PIECES))]
        (tmp_path / "log").write_bytes(data)
        try:
            curves = [*read_log(tmp_path / "log").curves.values()]
        except DumpError as error:
            assert "log" in str(error)
            continue
        for one in curves:
            assert (np.diff(one.steps) > 0).all() and len(one.steps) == len(one.values)
            compare_curves(one, curves[0], one)
