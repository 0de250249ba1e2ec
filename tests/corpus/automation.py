"""Twenty cases for automated callers: a question, the data, and the truth apart from both.

python -m tests.corpus.automation OUT              write OUT/01 … OUT/20, each with question.txt, and OUT/truth.json
python -m tests.corpus.automation OUT --score FILE score answers: {"01": "one sentence", …}

A caller gets docs/automation.md, a case's folder and a shell. A case is solved if its sentence matches all patterns of
the truth. The goal is 18 of 20, each in at most 6 calls of npucmp and 15,000 tokens of its output.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, Callable, NamedTuple

import click

import npucmp

SAMPLES = Path(__file__).parents[2] / "sample_dumps"


class Case(NamedTuple):
    """A question; `data` maps names in the folder of the case to folders of sample_dumps; `truth` are patterns, of
    which the answer must match each; `make` changes the data."""

    question: str
    data: dict[str, str]
    truth: tuple[str, ...]
    make: Callable[[Path], None] = lambda folder: None


def both(sample: str) -> dict[str, str]:
    return {"npu": f"{sample}/target", "gpu": f"{sample}/golden"}


def _drop_operator(folder: Path) -> None:
    """Remove the operator that computes the last outputs from the target's records."""
    (path,) = (folder / "npu").rglob("dump.json")
    found: dict[str, Any] = json.loads(path.read_text())
    del found["data"]["Functional.linear.0.backward"]
    path.write_text(json.dumps(found))


def _reports(folder: Path) -> None:
    """Replace the dumps by two reports, before and after a repair."""
    for name, target in (("report_monday", "npu"), ("report_today", "repaired")):
        npucmp.write_reports(npucmp.compare(folder / target, folder / "gpu"), folder / name)
    for name in ("npu", "repaired", "gpu"):
        shutil.rmtree(folder / name)


def _statistics_only(folder: Path) -> None:
    """Remove the values of a dump, so that statistics are left."""
    for path in (folder / "npu").rglob("dump_tensor_data"):
        shutil.rmtree(path)


CASES = (
    Case("The loss of npu is wrong, gpu is the reference. Which operator is the cause?", both("msprobe_softmax"),
         (r"softmax\.1\.forward",)),
    Case("npu gives other results than gpu. Which operator is the cause, and which argument of it is wrong?",
         both("msprobe_extra_operator"), (r"layer_norm\.1\.forward", r"\beps")),
    Case("npu differs from gpu. At which recorded operator does the error first show, and after which one is it born?",
         both("msprobe_uncaptured"), (r"linear\.9\.forward", r"linear\.8\.forward")),
    Case("The gradients of npu are wrong, the forward pass is right. Where does the error begin?",
         both("msprobe_backward"), (r"linear\.8\.backward",)),
    Case("Do npu and gpu agree? Answer AGREES, DIVERGED or UNDECIDED.", both("msprobe_clean"), (r"\bAGREES\b",)),
    Case("Do npu and gpu agree? Answer AGREES, DIVERGED or UNDECIDED, and say why.", both("msprobe_clean"),
         (r"\bUNDECIDED\b", r"linear\.0\.backward"), _drop_operator),
    Case("Two ranks, two steps: npu differs from gpu. At which step and on which rank is the error born, and in which "
         "operator?", both("msprobe_two_ranks"), (r"step[ =:]*1", r"rank[ =:]*1", r"linear\.1\.forward")),
    Case("npu ran on two tensor-parallel ranks, gpu on one card. What is wrong in npu, and where?",
         both("msprobe_tensor_parallel"), (r"__add__\.4\.forward", r"reduc")),
    Case("npu is a converted checkpoint of gpu (Megatron from HF). Which parameter is wrong, and what does it hold?",
         both("weights_megatron"), (r"layers\.1\.mlp\.gate_proj", r"up_proj")),
    Case("npu ran packed, gpu padded. Which operator is wrong, for which request and from which token position on?",
         both("msprobe_tokens"), (r"layers\.1\.self_attn", r"request[ =:]*1", r"(position|token)[^.]{0,25}\b3\b")),
    Case("npu has infinite values. Which operator produces the first?", {"npu": "overflow_exp/target"},
         (r"exp\.0\.forward",)),
    Case("npu has infinite values, gpu has none. Is the type of npu (float16) the cause, or the values? Answer TYPE or "
         "VALUES.", both("overflow_exp"), (r"\bTYPE\b",)),
    Case("on ran with fusion, off without. Which fusion pass must be switched off?",
         {"on": "cann_fusion_pass/target", "off": "cann_fusion_pass/golden"}, (r"AddReluFusionPass",)),
    Case("run1, run2 and run3 are repeats of one program. Which operator is not deterministic?",
         {"run1": "rerun_scatter/run1", "run2": "rerun_scatter/run2", "run3": "rerun_scatter/run3"},
         (r"index_add\.0\.forward",)),
    Case("rollout and trainer scored the same tokens. Why do their log-probabilities differ, and from which step on?",
         {"rollout": "parity_temperature/rollout", "trainer": "parity_temperature/trainer"},
         (r"(?i)temperature", r"step[ =:]*1")),
    Case("There is no reference. Which operator of npu is wrong by itself?", {"npu": "msprobe_softmax/target"},
         (r"softmax\.1\.forward",)),
    Case("Are the runs npu and gpu comparable at all? If not, what differs?",
         {"npu": "msprobe_two_ranks/golden/step0/rank0", "gpu": "msprobe_softmax/golden"},
         (r"(?i)\bnot? comparable|\bno\b", r"(?i)network|operator")),
    Case("Which msprobe configuration dumps all tensors of step 3 on rank 0 for a comparison? Answer with the value of "
         "`task` and of `step`.", {}, (r"\btensor\b", r"\b3\b")),
    Case("report_monday and report_today are reports of the same comparison. Is the fault fixed? Answer FIXED, SAME or "
         "NEW.", {**both("msprobe_softmax"), "repaired": "msprobe_softmax/golden"}, (r"\bFIXED\b",), _reports),
    Case("replay of npu decides nothing. What does the dump lack, and how is it recorded?",
         {"npu": "msprobe_softmax/target"}, (r"(?i)value|tensor data", r"(?i)task|tensor"), _statistics_only),
)  # fmt: skip


def write_cases(out: Path) -> None:
    """Write every case into a folder of its own, and the truth beside them."""
    for number, case in enumerate(CASES, 1):
        folder = out / f"{number:02}"
        folder.mkdir(parents=True)
        for name, source in case.data.items():
            shutil.copytree(SAMPLES / source, folder / name)
        case.make(folder)
        (folder / "question.txt").write_text(case.question + "\n")
    (out / "truth.json").write_text(json.dumps({f"{at:02}": one.truth for at, one in enumerate(CASES, 1)}, indent=1))


def solved(answers: dict[str, str]) -> list[str]:
    """Return the numbers of the cases whose answer matches all patterns."""
    truth = {f"{at:02}": one.truth for at, one in enumerate(CASES, 1)}
    return [
        number
        for number, patterns in truth.items()
        if all(re.search(pattern, answers.get(number, "")) for pattern in patterns)
    ]


@click.command(help=__doc__)
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--score", "answers", type=click.Path(exists=True, path_type=Path))
def main(out: Path, answers: Path | None) -> None:
    if answers is None:
        write_cases(out)
        return
    right = solved(json.loads(answers.read_text()))
    click.echo(f"{len(right)} of {len(CASES)} solved; not: {', '.join(n for n in _numbers() if n not in right) or '-'}")


def _numbers() -> list[str]:
    return [f"{at:02}" for at in range(1, len(CASES) + 1)]


if __name__ == "__main__":
    main()
