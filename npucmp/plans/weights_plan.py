"""Plan how to record weights before and after a synchronisation, and of a trainer and its inference engine.

save_weights.py writes the parameters of a module, one folder for each stage and rank, as safetensors if that package is
installed, else by torch.save. The lines call it in the process that holds the module. Sources: vLLM, LLM.apply_model
and Worker.update_weights; SGLang, ModelRunner.update_weights_from_tensor; verl, the sharding managers of its workers.
"""

from __future__ import annotations

import os
import shlex
from typing import Mapping, NamedTuple

from npucmp.errors import UsageError
from npucmp.plans.plan_result import REPORT, Planned
from npucmp.plans.request import DUMP, VALUES, DumpRequest, Question, ScriptLine

QUESTION = Question("weights", (VALUES,), "values")
SCRIPT = "save_weights.py"
SOURCE = "vLLM, SGLang and verl: the functions that load new weights"
BEFORE, AFTER, TRAINER = "before", "after", "trainer"


class WeightHolder(NamedTuple):
    """Where the lines of a framework go: the module in the code, and the function that loads new weights."""

    module: str
    where: str


HOLDERS: Mapping[str, WeightHolder] = {
    "pytorch": WeightHolder("model", "in the process that holds the model"),
    "vllm": WeightHolder("self.model_runner.get_model()", "in vLLM's Worker, in the function that loads new weights"),
    "sglang": WeightHolder("self.model", "in SGLang's ModelRunner, in update_weights_from_tensor"),
}
_SCRIPT = '''\
"""Write the parameters of a module, one folder for each stage and rank: written by npucmp plan weights."""

import os

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "{dump}")


def save_weights(module, stage):
    """Write DIR/dump/{{stage}}/rank{{N}}/model.safetensors, or model.pt without the package safetensors."""
    import torch

    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank = torch.distributed.get_rank() if distributed else int(os.environ.get("RANK", "0"))
    folder = os.path.join(HERE, stage, f"rank{{rank}}")
    os.makedirs(folder, exist_ok=True)
    tensors = {{name: one.detach().to("cpu", copy=True).contiguous() for name, one in module.state_dict().items()
               if isinstance(one, torch.Tensor)}}
    try:
        from safetensors.torch import save_file
    except ImportError:
        torch.save(tensors, os.path.join(folder, "model.pt"))
    else:
        save_file(tensors, os.path.join(folder, "model.safetensors"))
'''


def weights_plan(framework: str, folder: str) -> Planned:
    """Return the plan. Raises UsageError for a framework whose weights are not modules of PyTorch."""
    if framework not in HOLDERS:
        raise UsageError(f"{framework} has no plan for weights", [*HOLDERS])
    holder = HOLDERS[framework]
    request = DumpRequest(QUESTION, "target", folder, VALUES, (), ())
    path = os.path.abspath(folder)
    lines = [
        ScriptLine(f"import sys; sys.path.insert(0, {path!r}); from save_weights import save_weights", "at the top"),
        ScriptLine(f"save_weights({holder.module}, {BEFORE!r})", f"{holder.where}, before the new weights arrive"),
        ScriptLine(f"save_weights({holder.module}, {AFTER!r})", "behind them, and after sleep and resume"),
    ]
    if framework != "pytorch":
        lines.append(ScriptLine(f"save_weights(model, {TRAINER!r})", "in the trainer, before it sends its weights"))
    stages = {stage: shlex.quote(os.path.join(request.dump, stage)) for stage in (BEFORE, AFTER, TRAINER)}
    same = f"npucmp rerun-diff {stages[BEFORE]} {stages[AFTER]} -o {REPORT}"
    other = f"npucmp compare {stages[AFTER]} {stages[TRAINER]} -o {REPORT}"
    return Planned(
        request=request,
        framework=framework,
        source=SOURCE,
        files={SCRIPT: _SCRIPT.format(dump=DUMP)},
        script=tuple(lines),
        run=("the training or the service, until the second synchronisation",),
        other="",
        then=(same, *([other] if framework != "pytorch" else [])),
        size=None,
        notes=(
            "rerun-diff: weights that no update changed have equal bits before and after sleep and resume",
            "a checkpoint of the trainer (Megatron, FSDP, transformers) can take the place of the recorded trainer; "
            "put config.json beside it",
            "a service that synchronises more than once overwrites the files: move them away after the second time",
        ),
        unverified=("the functions of vLLM and SGLang have other names in some releases",),
    )
