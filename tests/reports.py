"""Reports made of nouns alone, without any dump, so that a presenter can be shown many rows, hostile names."""

from __future__ import annotations

import random
from typing import Optional

from npucmp.model import (
    HISTOGRAM_BINS,
    Cause,
    Comparison,
    Evidence,
    Fact,
    Finding,
    Measurement,
    Moments,
    Operator,
    Pair,
    Report,
    Result,
    Root,
    Run,
    Side,
    TensorRef,
    Tolerance,
    Verdict,
)
from npucmp.report import answer_of

KINDS = ("linear", "softmax", "layer_norm", "matmul", "add", "gelu", "dropout", "reshape")
LIMIT = 4.77e-7


def screen(result: Result) -> str:
    """What the terminal shows."""
    return f"{result}\n"


def table(result: Result, file: str) -> list[dict[str, object]]:
    """The rows of one of its files."""
    (found,) = (one for one in answer_of(result).tables if one.file == file)
    columns = found.columns()
    return [dict(zip(found.names, cells)) for cells in zip(*(columns[name] for name in found.names))]


def said(words: str) -> tuple[Evidence, ...]:
    """Evidence of one sentence that is all text of a dump."""
    return (Evidence("", "{words}", {"words": Fact(words)}),)


def tensor(slot: str, shape: tuple[int, ...], label: str, dtype: str = "float32") -> TensorRef:
    return TensorRef(slot, dtype, shape, file=f"{label}.pt", encoding="torch_pt", label=f"{label}.pt")


def moments(error: float, count: int, chance: random.Random) -> Moments:
    """As of `count` normal numbers, the target so far from the golden."""
    yy = count * chance.uniform(0.8, 1.2)
    low, high, mean = chance.uniform(-5, -3), chance.uniform(3, 5), chance.gauss(0, 0.1)
    hashes = [chance.getrandbits(64) for _ in range(2)]
    golden = Side(minimum=low, maximum=high, total=mean * count, squares=yy, hash=hashes[0])
    target = Side(minimum=low * (1 + error), maximum=high * (1 - error), total=mean * count * (1 + error), squares=yy,
                  hash=hashes[1])  # fmt: skip
    if not error:
        return Moments(count, golden, golden, count, equal=count, xx=yy, yy=yy, xy=yy, max_ulp=0,
                       below_1e3=count, below_5e3=count, histogram=(count,) + (0,) * (HISTOGRAM_BINS - 1))  # fmt: skip
    histogram = [0] * HISTOGRAM_BINS
    for _ in range(8):
        histogram[chance.randrange(8, 18)] += count // 8
    return Moments(
        count, target, golden, count, equal=chance.randrange(count),
        xx=yy * (1 + error), yy=yy, xy=yy * (1 - error**2 / 2), sum_d=error * chance.gauss(0, 1),
        sum_abs=error * count * 0.8, sum_dd=error**2 * yy, max_abs=error * chance.uniform(3, 9),
        max_abs_index=chance.randrange(count), max_rel=chance.uniform(0, 1), max_rel_index=chance.randrange(count),
        sum_rel=error * count * chance.uniform(1, 5), below_1e3=chance.randrange(count), below_5e3=count,
        outside=chance.randrange(count) if error > LIMIT else 0, max_ulp=chance.randrange(1, 5000),
        histogram=tuple(histogram),
    )  # fmt: skip


def large(operators: int, slots: tuple[str, ...] = ("input:0", "output:0"), seed: int = 1) -> Report:
    """Operators, the first half forward, every third of them bit-equal; error is born in one and passed on."""
    chance = random.Random(seed)
    born = operators // 3
    findings, roots, made = [], [], []
    for order in range(operators):
        kind = KINDS[order % len(KINDS)]
        phase = "forward" if order < operators // 2 else "backward"
        name = f"Functional.{kind}.{order // len(KINDS)}.{phase}"
        stack = (f"File /home/user/train/modeling.py, line {100 + order % 400}, in forward, \n x = F.{kind}(x)",)
        shape = chance.choice([(8, 256, 768), (8, 12, 256, 256), (8, 256, 3072), (768,)])
        tensors = tuple(tensor(slot, shape, f"{name}.{slot.replace(':', '.')}") for slot in slots)
        operator = Operator(name, kind, f"{kind}.{phase}", phase, order, tensors, stack=stack)
        made.append(operator)
        worst = 0.0
        for one in tensors:
            error = size(order, born, one.is_output, chance)
            worst = max(worst, error)
            pair = Pair(order, one.slot, operator, operator, one, one, "name", 1.0)
            count = 1
            for length in shape:
                count *= length
            verdict = Verdict.DIVERGED if error > LIMIT else Verdict.MATCH
            because = f"rel_l2 {error:.2e}, limit {LIMIT:.2e}"
            findings.append(
                Finding(Measurement(pair, moments(error, count, chance)), verdict, because, error, LIMIT, "rel_l2")
            )
        if worst > LIMIT:
            cause = Cause.BORN if order == born else Cause.PROPAGATED
            how = "agree" if cause is Cause.BORN else "differ"
            evidence = *said(f"inputs {how}"), *said(f"output:0: rel_l2 {worst:.2e}, limit {LIMIT:.2e}")
            roots.append(Root(len(roots) + 1, findings[-1].pair, cause, "output:0", "rel_l2", worst, LIMIT,
                              None if cause is Cause.BORN else worst, worst, evidence))  # fmt: skip
    run = Run("/data/dump/step0/rank0", "msprobe", tuple(made), 0, 0, "pytorch · L1 tensor")
    comparison = Comparison(run, run, tuple(findings), tuple(roots), {"name": operators})
    rules = (Tolerance("rel_l2", LIMIT, "float32", why="8 unit round-offs"),)
    argv = "npucmp", "compare", "npu", "gpu"
    return Report(("npu", "gpu"), comparisons=(comparison,), rules=rules, argv=argv, seconds=1.0)


def size(order: int, born: int, output: bool, chance: random.Random) -> float:
    """Rounding before the birth, much more from it on."""
    if order % 3 == 0 and order != born:
        return 0.0
    if order > born or (order == born and output):
        return 10 ** chance.uniform(-5, -2)
    return 10 ** chance.uniform(-8, -6.5)


PARTS = (
    "norm.LayerNorm self_attn.q_proj.Linear self_attn.k_proj.Linear self_attn.v_proj.Linear self_attn.core.Attention \
self_attn.o_proj.Linear mlp.gate.Linear mlp.up.Linear mlp.act.SiLU mlp.down.Linear".split()
)
READS = {1: (-1,), 2: (-2,), 3: (-3,), 4: (-3, -2, -1), 6: (-1,), 7: (-2,), 9: (-1, -2)}  # else the one before


def layered(operators: int, seed: int = 1, born: float = 0.5) -> Report:
    """Modules of a transformer with ten operators a layer, each of which reads outputs of earlier ones; the error is
    born in one at the share `born` of the network."""
    chance = random.Random(seed)
    findings, roots, made, written = [], [], [], []
    first = int(born * operators)
    for order in range(operators):
        layer, part = divmod(order, len(PARTS))
        path, _, kind = PARTS[part].rpartition(".")
        path = f"Module.model.layers.{layer}.{path}"
        operator = Operator(f"{path}.{kind}.forward.0", kind, kind, "forward", order, (), path=path)
        made.append(operator)
        rows = [
            (f"input:{at}", written[order + back])
            for at, back in enumerate(READS.get(part, (-1,)))
            if order + back >= 0
        ]
        written.append(moments(size(order, first, True, chance), 4096, chance))
        for slot, found in [*rows, ("output:0", written[-1])]:
            one = tensor(slot, (64, 64), f"{order}.{slot}")
            error = abs(found.sum_d) and (found.sum_dd / found.yy) ** 0.5
            verdict = Verdict.DIVERGED if error > LIMIT else Verdict.MATCH
            pair = Pair(order, slot, operator, operator, one, one, "name", 1.0)
            findings.append(Finding(Measurement(pair, found), verdict, "", error, LIMIT, "rel_l2"))
        if error > LIMIT:
            cause = Cause.BORN if order == first else Cause.PROPAGATED
            roots.append(
                Root(
                    len(roots) + 1,
                    findings[-1].pair,
                    cause,
                    "output:0",
                    "rel_l2",
                    error,
                    LIMIT,
                    0.0,
                    error,
                    said("differs"),
                )
            )
    run = Run("/data/dump/step0/rank0", "msprobe", tuple(made), 0, 0, "pytorch · L0 tensor")
    comparison = Comparison(run, run, tuple(findings), tuple(roots), {"name": operators})
    return Report(("npu", "gpu"), comparisons=(comparison,), argv=("npucmp", "compare"), seconds=1.0)


def named(*names: str, because: str = "", stack: Optional[str] = None, dtype: str = "float32") -> Report:
    """A report in which each of these names is an operator that diverged."""
    findings, roots, made = [], [], []
    for order, name in enumerate(names):
        one = tensor("output:0", (2, 3), name, dtype)
        operator = Operator(
            name, name, name, "forward", order, (one,), stack=(stack or f"File {name}.py, line 1, in f, \n x",)
        )
        made.append(operator)
        pair = Pair(order, "output:0", operator, operator, one, one, "name", 1.0)
        measured = Measurement(pair, moments(0.1, 6, random.Random(order)))
        findings.append(Finding(measured, Verdict.DIVERGED, because or name, 0.1, LIMIT, "rel_l2"))
        roots.append(
            Root(order + 1, pair, Cause.BORN, "output:0", "rel_l2", 0.1, LIMIT, 0.0, 0.1, said(because or name))
        )
    run = Run(names[0], "npy", tuple(made), 0, None, names[0], notes=(names[0],))
    comparison = Comparison(run, run, tuple(findings), tuple(roots), {"name": len(names)})
    rules = (Tolerance("rel_l2", LIMIT, "float32", why=names[0]),)
    argv = ("npucmp", names[0])
    return Report((names[0], names[0]), comparisons=(comparison,), rules=rules, argv=argv, notes=(names[0],))
