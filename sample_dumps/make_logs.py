"""Makes config_log: the logs of two trainings, each with the configuration that verl prints at its start.

The golden run prints it plainly; the target run prints it through Ray, with the name of the worker in each line and a
warning of a library in the middle. The learning rate of the target's actor is twice the golden's. No training was run:
names and layout are those of verl 0.5, the values are made up.

    python make_logs.py [FOLDER]          writes FOLDER/target.log and FOLDER/golden.log, by default config_log
"""

from __future__ import annotations

import sys
from pathlib import Path
from pprint import pformat
from typing import Any

WARNING = """/usr/local/lib/python3.11/site-packages/vllm/connections.py:8: RuntimeWarning: Failed to read commit hash:
No module named 'vllm._version'
  from vllm.version import __version__ as VLLM_VERSION"""


def configuration(rate: float, device: str) -> dict[str, Any]:
    """The configuration of a run."""
    megatron = {"pipeline_model_parallel_size": 2, "seed": 1, "tensor_model_parallel_size": 4}
    actor = {
        "clip_ratio": 0.2,
        "entropy_coeff": 0.001,
        "megatron": megatron,
        "optim": {
            "clip_grad": 1.0,
            "lr": rate,
            "lr_warmup_steps": -1,
            "warmup_style": "constant",
            "weight_decay": 0.01,
        },
        "ppo_mini_batch_size": 32,
        "strategy": "megatron",
    }
    rollout = {"do_sample": True, "dtype": "bfloat16", "n": 4, "name": "vllm", "temperature": 1.0, "top_k": -1}
    return {
        "actor_rollout_ref": {"actor": actor, "model": {"path": f"/data/{device}/Qwen2.5-7B"}, "rollout": rollout},
        "algorithm": {
            "adv_estimator": "grpo",
            "gamma": 1.0,
            "kl_ctrl": {"kl_coef": 0.001, "type": "fixed"},
            "lam": 1.0,
        },
        "data": {"max_prompt_length": 512, "train_batch_size": 32, "train_files": f"/data/{device}/train.parquet"},
        "trainer": {"device": device, "logger": ["console"], "nnodes": 1, "total_epochs": 1},
    }


def write(folder: Path) -> None:
    """Both logs."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = pformat(configuration(2e-6, "npu")).split("\n")
    lines[6:6] = WARNING.split("\n")
    lines.append("step:1 - actor/pg_loss:0.0123 - actor/grad_norm:0.871 - critic/rewards/mean:0.25")
    start = "2026-03-02 21:02:59,766\tINFO worker.py:1843 -- Started a local Ray instance.\n"
    text = start + "".join(f"\x1b[36m(TaskRunner pid=480334)\x1b[0m {line}\n" for line in lines)
    (folder / "target.log").write_text(text, encoding="utf-8")
    text = pformat(configuration(1e-6, "cuda"))
    text = f"TaskRunner hostname: gpu0, PID: 77\n{text}\nstep:1 - actor/pg_loss:0.0119 - actor/grad_norm:0.868\n"
    (folder / "golden.log").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "config_log")
