"""Configurations that trainings print into their logs, in the layout of each framework; hostile logs; config_check."""

from __future__ import annotations

import json
import random
from pprint import pformat

import pytest

from npucmp import precheck
from npucmp.comparability.config_file import read_config
from npucmp.comparability.printed_values import printed_value
from npucmp.errors import NpucmpError
from tests.comparability.craft import differing, status, words
from tests.comparability.test_files import ENV, HYPER, PIP, checked, pack

MEGATRON = {"adam_beta1": 0.9, "adam_eps": 1e-08, "bf16": True, "data_path": ["/data/x_text"], "empty": "", "lr": 3e-4,
            "params_dtype": "torch.bfloat16", "seed": 1234, "timer": "<function f at 0x7f00aa>", "yaml_cfg": None,
            "inference_batch_times_seqlen_threshold_and_more": -1,
            "a_name_that_leaves_no_room_for_any_dots_at_all_x": 2}  # fmt: skip
VERL = {
    "actor_rollout_ref": {"actor": {"optim": {"lr": 1e-06, "betas": (0.9, 0.999)}, "strategy": "fsdp", "use_kl": True},
                          "rollout": {"dtype": "bfloat16", "n": 4, "stop": None, "prompt": "a long prompt, " * 12}},
    "data": {"train_batch_size": 32, "files": ["a", "b"], "empty": {}},
    "trainer": {"total_epochs": 1, "note": "it's {odd} [text"},
}  # fmt: skip
FLAT_VERL = {
    "actor_rollout_ref.actor.optim.lr": 1e-06, "actor_rollout_ref.actor.optim.betas": [0.9, 0.999],
    "actor_rollout_ref.actor.strategy": "fsdp", "actor_rollout_ref.actor.use_kl": True,
    "actor_rollout_ref.rollout.dtype": "bfloat16", "actor_rollout_ref.rollout.n": 4,
    "actor_rollout_ref.rollout.stop": None, "actor_rollout_ref.rollout.prompt": "a long prompt, " * 12,
    "data.train_batch_size": 32, "data.files": ["a", "b"], "trainer.total_epochs": 1,
    "trainer.note": "it's {odd} [text",
}  # fmt: skip


def table(values, title="arguments"):
    """Arguments as Megatron-LM, MindSpeed-LLM and slime print them."""
    rows = "".join(f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in sorted(values.items()))
    dashes = "-" * 24, "-" * 20, "-" * 21
    return f"{dashes[0]} {title} {dashes[0]}\n{rows}{dashes[1]} end of {title} {dashes[2]}\n"


TRANSFORMERS = """01/25/2026 23:28:32 - INFO - __main__ - Training/evaluation parameters TrainingArguments(
_n_gpu=3,
accelerator_config={'split_batches': False, 'dispatch_batches': None},
adam_epsilon=1e-08,
debug=[],
eval_strategy=IntervalStrategy.NO,
fp16_opt_level=O1,
learning_rate=5e-05,
output_dir=/a/b, c,
seed=42,
)
[INFO|configuration_utils.py:765] 2026-05-01 10:00:00,100 >> Model config LlamaConfig {
  "architectures": [
    "LlamaForCausalLM"
  ],
  "hidden_size": 4096,
  "rope_scaling": null,
  "torch_dtype": "bfloat16"
}

{'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 4e-05, 'epoch': 0.01}
[2026-09-15 00:13:21,398] [INFO] [config.py:999:print] DeepSpeedEngine configuration:
[2026-09-15 00:13:21,398] [INFO] [config.py:1003:print]   activation_checkpointing_config  {
    "profile": false
}
[2026-09-15 00:13:21,398] [INFO] [config.py:1003:print]   aio_config ................... {'block_size': 1048576}
[2026-09-15 00:13:21,398] [INFO] [config.py:1003:print]   checkpoint_tag_validation_enabled  True
[2026-09-15 00:13:21,399] [INFO] [config.py:1003:print]   comms_config ................. <deepspeed.C object at 0x2ac>
[2026-09-15 00:13:21,400] [INFO] [config.py:989:print_user_config]   json = {
    "train_batch_size": 16,
    "fp16": {
        "enabled": true
    },
    "steps_per_print": 1.000000e+10
}
step:0, loss:5.453125
"""
FLAT_TRANSFORMERS = {
    "TrainingArguments._n_gpu": 3, "TrainingArguments.accelerator_config.split_batches": False,
    "TrainingArguments.accelerator_config.dispatch_batches": None, "TrainingArguments.adam_epsilon": 1e-8,
    "TrainingArguments.debug": [], "TrainingArguments.eval_strategy": "IntervalStrategy.NO",
    "TrainingArguments.fp16_opt_level": "O1", "TrainingArguments.learning_rate": 5e-5,
    "TrainingArguments.output_dir": "/a/b, c", "TrainingArguments.seed": 42,
    "LlamaConfig.architectures": ["LlamaForCausalLM"], "LlamaConfig.hidden_size": 4096,
    "LlamaConfig.rope_scaling": None, "LlamaConfig.torch_dtype": "bfloat16",
    "DeepSpeed.aio_config.block_size": 1048576, "DeepSpeed.checkpoint_tag_validation_enabled": True,
    "DeepSpeed.comms_config": "<deepspeed.C object>", "DeepSpeed.train_batch_size": 16, "DeepSpeed.fp16.enabled": True,
    "DeepSpeed.steps_per_print": 1e10,
}  # fmt: skip
ONE_LINE = (
    "- INFO - __main__ -   Training/evaluation parameters TrainingArguments(output_dir='/w', do_eval=True, "
    "evaluation_strategy=<EvaluationStrategy.STEPS: 'steps'>, learning_rate=0.0005, seed=7)\n"
)
FLAT_ONE_LINE = {"output_dir": "/w", "do_eval": True, "evaluation_strategy": "<EvaluationStrategy.STEPS: 'steps'>",
                 "learning_rate": 0.0005, "seed": 7}  # fmt: skip
HYDRA = """Starting: now
[2026-01-01 12:00:00,123][__main__][INFO] - model:
  name: gpt
  layers:
  - 1
  - a: 2
optimizer:
  lr: 1e-05
  betas:
  - 0.9
  - 0.95
  note: a long text that goes on
    in the next line
seed: 3
trainer:
  max_steps: 10

Epoch: 1
"""
FLAT_HYDRA = {"model.name": "gpt", "model.layers.0": 1, "model.layers.1.a": 2, "optimizer.lr": "1e-05",
              "optimizer.betas": [0.9, 0.95], "optimizer.note": "a long text that goes on in the next line", "seed": 3,
              "trainer.max_steps": 10}  # fmt: skip
FLAT_MEGATRON = {**MEGATRON, "timer": "<function f>"}


def prefixed(text, prefix):
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def through_ray(text):
    """As Ray prints it: coloured names of workers, and a warning in the middle."""
    lines = text.splitlines()
    lines[3:3] = ["/x/y.py:8: RuntimeWarning: Failed to read:", "No module named 'v'", "  from v import __version__"]
    return prefixed("\n".join(lines), "\x1b[36m(TaskRunner pid=48)\x1b[0m ").replace(
        "No module", "(pid=9) No module named 'v' [repeated 8x across cluster]\n(TaskRunner pid=48) No module", 1
    )


def interleaved(one, other):
    """Two workers print at the same time."""
    lines = zip(prefixed(one, "(A pid=1) ").splitlines(), prefixed(other, "(B pid=2) ").splitlines() + [""] * 99)
    return "\n".join(line for pair in lines for line in pair)


FORMATS = {  # name: (log, values by dotted name)
    "Megatron-LM": (table(MEGATRON), FLAT_MEGATRON),
    "another title": (table(MEGATRON, "MindSpeed Arguments"), FLAT_MEGATRON),
    "a rank and a date in each line": (
        prefixed(table(MEGATRON), "[rank0]: 2026-01-01 12:00:00,123 INFO ").replace("\n", "\r\n"), FLAT_MEGATRON
    ),
    "a launcher's label": (prefixed(table(MEGATRON), "[default0]:"), FLAT_MEGATRON),
    "srun": (prefixed(table(MEGATRON), "0: "), FLAT_MEGATRON),
    "verl": (pformat(VERL) + "\nstep:1 - actor/loss:0.1\n", FLAT_VERL),
    "verl in one line": (f"config: {VERL}\n", FLAT_VERL),
    "verl through Ray": (through_ray(pformat(VERL)), FLAT_VERL),
    "verl beside another worker": (interleaved(pformat(VERL), "a: 1\n{'x': [\nlr: 2"), FLAT_VERL),
    "a dict after a progress bar": ("  9%|# | 1/9\r" + pformat(VERL), FLAT_VERL),
    "JSON": ("INFO config: " + json.dumps(VERL, indent=2), FLAT_VERL),
    "transformers and DeepSpeed": (TRANSFORMERS, FLAT_TRANSFORMERS),
    "arguments in one line": (ONE_LINE, FLAT_ONE_LINE),
    "Hydra": (HYDRA, FLAT_HYDRA),
    "Hydra through Ray": (prefixed(HYDRA, "(main pid=7, ip=10.0.0.1) "), FLAT_HYDRA),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_a_log_of_each_framework(tmp_path, name):
    text, expected = FORMATS[name]
    (tmp_path / "train.log").write_bytes(f"WARNING: hello\n{text}".encode())
    assert read_config(str(tmp_path / "train.log")).values == expected


def test_dicts_that_are_no_configuration(tmp_path):
    tool = {"type": "function", "parameters": {"a": {"b": 1}, "c": 2, "d": 3, "e": 4, "f": 5, "g": 6, "h": 7}}
    metrics = "{'loss': 2.3, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1, 'a': 1, 'b': 2, 'c': 3, 'd': 4}\n"
    (tmp_path / "train.log").write_text(pformat(VERL) + "\n" + metrics * 9 + json.dumps(tool, indent=2) + "\n")
    assert read_config(str(tmp_path / "train.log")).values == FLAT_VERL
    (tmp_path / "train.log").write_text(metrics + json.dumps(tool, indent=2))
    with pytest.raises(NpucmpError, match="a log in which the training printed its configuration"):
        read_config(str(tmp_path / "train.log"))


def test_two_logs_of_other_frameworks(tmp_path):
    (tmp_path / "t.log").write_text(
        table({**MEGATRON, "distributed_backend": "hccl", "save": "/x", "vocab": "/a/v.txt"})
    )
    (tmp_path / "g.yaml").write_text(
        "optim: {learning_rate: 1.0e-4, adam_beta1: 0.9, adam_eps: 1.0e-8}\nseed: 1234\nbf16: true\nvocab: /b/v.txt\n"
        "params_dtype: torch.bfloat16\ndistributed_backend: nccl\n"
    )
    paths = str(tmp_path / "t.log"), str(tmp_path / "g.yaml")
    result = precheck("-", "-", config=paths)
    assert words(result, "hyperparameters") == (
        "lr (optim.learning_rate): 0.0003 against 0.0001; 3 only in target: "
        "a_name_that_leaves_no_room_for_any_dots_at_all_x = 2, inference_batch_times_seqlen_threshold_and_more = -1, "
        "timer = <function f>"
    )
    assert result.exit_status == 1
    assert result.notes == ("configuration of target: arguments from line 1",)
    (tmp_path / "g.log").write_text(prefixed(table(MEGATRON), "[rank7]: "))
    same = precheck("-", "-", config=(str(tmp_path / "g.log"), str(tmp_path / "g.log")))
    assert differing(same) == {} and status(same, "hyperparameters") == "same"


VALUES = [
    ("1e-4", 1e-4), ("-3", -3), ("True", True), ("null", None), ("'a' \n 'b'", "ab"), ("('a'\n'b')", "ab"),
    ("(1,)", [1]),
    ("torch.bfloat16", "torch.bfloat16"), ("{1, 2}", [1, 2]), ("np.float64(0.5)", 0.5), ("/a/b:c", "/a/b:c"),
    ("OrderedDict([('a', 1)])", "OrderedDict([('a', 1)])"), ("C(x=1, y='b')", {"x": 1, "y": "b"}), ("", ""),
    ("<f at 0x7f1>", "<f>"), ("'\\'\\x41\\n'", "'A\n"), ("1.2.3", "1.2.3"), ("[1, 2", "[1, 2"),
    ("__import__('os')", "__import__('os')"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_printed_values(text, value):
    assert printed_value(text) == value


HOSTILE = {
    "deep": "{'a': " * 50_000 + "1" + "}" * 50_000,
    "deep calls": "XConfig(a=" * 50_000,
    "brackets": "config: {" + "(" * 200_000 + ")" * 200_000 + "}",
    "never closed": "{'a': [1, 2,\n" * 20_000,
    "opened in each line": "config: {\n" + "  'a': {\n" * 50_000,
    "quotes": "{'" + "\\'" * 200_000,
    "spaces": "config: {" + " " * 500_000,
    "dashes": "-" * 500_000 + " x",
    "dots": "---- arguments ----\n a " + "." * 500_000 + "x",
    "one word": "a" * 500_000 + ":",
    "digits": "{'lr': " + "9" * 400_000,
    "numbers": "config: {" + ("9" * 299 + "x, ") * 3_000 + "}",
    "dates": "2026-01-01 00:00:00" + " - a" * 100_000,
    "gaps": "2026-01-01 00:00:00" + " " * 300_000 + "x",
    "YAML levels": "\n".join(" " * n + f"seed{n}:" for n in range(300)),
    "YAML brackets": "lr:\n  seed: " + "[" * 3_000 + "".join(f"\n{name}: 1" for name in "abcdefgh"),
    "YAML aliases": "a0: &a0 [x]\nlr: 1\nseed:\n"
    + "\n".join(f"  a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)),
    "workers": "".join(f"(W pid={n}) {{'a': {{\n" for n in range(20_000)),
    "bytes": random.Random(1).randbytes(500_000).decode("latin-1"),
    "code": "{'lr': __import__('os').system('touch /tmp/npucmp_was_here')}\n" + "{'seed': exit()}",
}  # fmt: skip


def test_a_line_of_100_mb(tmp_path):
    path = tmp_path / "train.log"
    with path.open("wb") as file:
        file.write(b"{'lr': '")
        for _ in range(100):
            file.write(b"x" * (1 << 20))
        file.write(b"\n" + table(MEGATRON).encode())
    assert read_config(str(path)).values == FLAT_MEGATRON


def folder_of(path, **changed):
    """The files of a pack, as config_check leaves them beside its result."""
    hyper = changed.get("hyper", HYPER)
    (path / "hyperparameters").mkdir(parents=True)
    (path / "pip").write_text(changed.get("pip", PIP))
    (path / "env").write_text(json.dumps(ENV))
    (path / "hyperparameters" / "hyperparameters_static.json").write_text(json.dumps(hyper))
    for kind, file in (("weights", "weight.json"), ("dataset", "dataset.json")):
        for step in (0, 1):
            (path / kind / f"step{step}" / "rank0").mkdir(parents=True)
            figures = {"max": 1.0 + step, "min": -1.0, "mean": 0.0, "norm": 3.0}
            (path / kind / f"step{step}" / "rank0" / file).write_text(json.dumps({"fc.weight": figures}))
    return str(path)


def test_folders_of_config_check(tmp_path):
    golden = folder_of(tmp_path / "bench")
    result = checked(folder_of(tmp_path / "cmp", pip=PIP.replace("2.1.0", "2.6.0"), hyper={**HYPER, "lr": 1}), golden)
    assert differing(result) == {"versions": "error", "hyperparameters": "error"}
    assert (status(result, "weights"), status(result, "input")) == ("same", "same")
    config = precheck("-", "-", config=(str(tmp_path / "cmp"), golden))
    assert words(config, "hyperparameters") == "lr: 1 against 0.0001"


def test_a_folder_with_one_pack(tmp_path):
    (tmp_path / "out").mkdir()
    pack(tmp_path / "out" / "config_check_pack.zip")
    assert differing(checked(str(tmp_path / "out"), pack(tmp_path / "g.zip"))) == {}


def test_a_folder_leads_nowhere_else(tmp_path):
    (tmp_path / "secret").write_text("torch=9.9\n")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "pip").symlink_to(tmp_path / "secret")
    result = checked(str(tmp_path / "t"), pack(tmp_path / "g.zip"))
    assert status(result, "versions") == "unknown" and "leads out of the dump" in words(result, "versions")
    (tmp_path / "empty").mkdir()
    result = checked(str(tmp_path / "empty"), pack(tmp_path / "g.zip"))
    assert "is no folder of config_check" in words(result, "versions")
