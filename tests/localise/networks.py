"""Networks by hand, as judged findings: the operators of one or both runs, and the tensors that they read and write.

An operator is a line such as "linear x w? -> y": its type, what it reads, what it writes. Tensors of one letter hold
the same values. A tensor was compared and matches; "?" follows one that was not, "!" one that diverged. "golden" or
"target" before the type names the only run that has the operator, ".backward" after it the pass, and "@" the call.
"y~1e-3" is a tensor whose target is off by that rel_l2, "y~z" one whose target has the values of z.
"""

from __future__ import annotations

from functools import cache
from zlib import crc32

import numpy as np

from npucmp import Tolerances
from npucmp.judge.tolerance import Limit, judge
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Finding, Measurement, Moments, Operator, Pair, Statistics, TensorRef, Verdict

SHAPE = (4, 5)
ROUND_OFF = 8 * 2.0**-24  # the limit of a float32 tensor
VERDICTS = {"": Verdict.MATCH, "?": Verdict.UNKNOWN, "!": Verdict.DIVERGED}


@cache
def values_of(letter: str) -> np.ndarray:
    """The values of a tensor, by its letter."""
    return np.random.default_rng(crc32(letter.encode())).standard_normal(SHAPE).astype(np.float32)


def network(*lines: str, figures: bool = False, **values: np.ndarray) -> list[Finding]:
    """The findings of operators in graph order. `values` of letters; `figures`: recorded statistics in their place."""
    found: list[Finding] = []
    for order, line in enumerate(lines):
        found += operator(order, line, figures, **values)
    return numbered(found)


def operator(order: int, line: str, figures: bool = False, **values: np.ndarray) -> list[Finding]:
    """The findings of one operator at a place."""
    head, _, tail = line.partition("->")
    words = head.split()
    side = words.pop(0) if words[0] in ("golden", "target") else ""
    name, _, call = words[0].partition("@")
    kind, _, phase = name.partition(".")
    call, phase = call or f"{kind}.{order}", phase or "forward"
    named = [(f"input:{at}", word) for at, word in enumerate(words[1:])]
    named += [(f"output:{at}", word) for at, word in enumerate(tail.split())]
    tensors = [tensor(slot, word.rstrip("?!").partition("~")[0], figures, **values) for slot, word in named]
    op = Operator(f"{call}.{phase}", kind, kind, phase, order, tuple(tensors), call=call)
    return [
        finding(Pair(order, one.slot, op, op, one, one), word, side, **values) for (_, word), one in zip(named, tensors)
    ]


def finding(both: Pair, word: str, side: str, **values: np.ndarray) -> Finding:
    """The finding of a tensor that both runs have, or one of them, by the word of its line."""
    letter, _, error = word.rstrip("?!").partition("~")
    verdict = Verdict.MISSING if side else VERDICTS[word[len(word.rstrip("?!")) :]]
    pair = both if side else both._replace(via="name", confidence=1.0)
    if side:
        pair = pair._replace(**dict.fromkeys(("golden", "golden_op") if side == "target" else ("target", "target_op")))
    known = None if both.golden.statistics else moments(letter, error, **values)
    if known is not None and verdict is Verdict.MATCH:
        return judge(Measurement(pair, known), Tolerances(), Limit(ROUND_OFF, "round_off"))
    return Finding(Measurement(pair, known), verdict, "", error=None if verdict is not Verdict.MATCH else 0.0)


def tensor(slot: str, letter: str, figures: bool, **values: np.ndarray) -> TensorRef:
    own = values.get(letter, values_of(letter))
    return TensorRef(slot, str(own.dtype), own.shape, statistics=statistics(own) if figures else None, label=letter)


def statistics(own: np.ndarray) -> Statistics:
    wide = own.astype(np.float64)
    if not own.size:
        return Statistics()
    return Statistics(float(wide.max()), float(wide.min()), float(wide.mean()), float(np.sqrt((wide**2).sum())))


def moments(letter: str, error: str, **values: np.ndarray) -> Moments:
    own = values.get(letter, values_of(letter)).reshape(-1)
    other = values[error].reshape(-1) if error in values else own
    if error and error not in values:
        noise = np.resize(values_of(f"noise of {letter}").astype(np.float64), own.shape)
        size = float(error) * np.linalg.norm(own.astype(np.float64)) / np.linalg.norm(noise)
        other = (own + size * noise).astype(own.dtype)
    return measure_block(other, own, bars_for(str(own.dtype), str(own.dtype), 0.0, 0.0))


def numbered(findings: list[Finding]) -> list[Finding]:
    """The findings with the numbers of their rows."""
    return [one._replace(row=row) for row, one in enumerate(findings)]


def paired(finding: Finding, **changes: object) -> Finding:
    """The finding with changes of its pair."""
    return finding._replace(measurement=finding.measurement._replace(pair=finding.pair._replace(**changes)))


def with_golden(finding: Finding, **changes: object) -> Finding:
    """The finding with changes of its golden tensor."""
    return paired(finding, golden=finding.pair.golden._replace(**changes))


def named(findings: list[Finding]) -> list[str]:
    """The place and the letter of each tensor."""
    return [f"{one.pair.order}:{(one.pair.golden or one.pair.target).label}" for one in findings]


SMALL = {"s": np.float32([3.3]), "k": np.full(SHAPE, 0.7, np.float32), "m": np.eye(4, 5) > 0, "e": np.ones((0, 3), "f")}
# the lines of both runs, and the tensors that stay open without values and with them
OPEN = {
    "a tensor that was compared": (["linear x w -> y"], ""),
    "an output that no operator reads": (["linear x w -> y?"], "0:y"),
    "an output whose reader was compared": (["linear x w -> y?", "relu y -> z"], ""),
    "an input whose writer was compared": (["linear x w -> y", "relu y? -> z"], ""),
    "an input whose other reader was compared": (["relu x -> y", "tanh x? -> z"], ""),
    "an input whose writer diverged": (["linear x w -> y!", "relu y? -> z!"], ""),
    "no tensor was compared": (["linear x? w? -> y?", "relu y? -> z?"], "0:x 0:w 0:y 1:y 1:z"),
    "an input of the network": (["relu x? -> y"], "0:x"),
    "a tensor between two that were compared": (["linear x w -> y?", "relu y? -> z"], ""),
    "two tensors between": (["linear x w -> y?", "relu y? -> z?", "tanh z? -> q"], ""),
    "the last tensor is open": (["linear x w -> y?", "relu y? -> z?"], "0:y 1:y 1:z"),
    "the first tensor is open": (["linear x? w -> y?", "relu y? -> z"], "0:x 0:y 1:y"),
    "one of two stretches is closed": (
        ["linear x w -> y?", "relu y? -> z", "tanh z -> a?", "exp a? -> b?"], "2:a 3:a 3:b"),
    "a branch is open": (["linear x w -> y?", "relu y? -> z", "tanh y? -> q?"], "0:y 1:y 2:y 2:q"),
    "a reader before the writer was compared": (["relu y -> z", "linear z -> y?"], "1:y"),
    "the reader of an earlier place is undecided": (["relu x y? -> z", "linear z -> y?"], "0:y 1:y"),
    "an operator that gives what it read": (["relu y -> y?"], "0:y"),
    "a view": (["view y -> y?"], ""),
    "a cast": (["to y -> y?"], ""),
    "a slice of a whole tensor": (["slice y -> y?"], "0:y"),
    "a backward gives what it read": (["relu.backward y -> y?"], ""),
    "a backward gives what another read": (["tanh y -> q", "relu.backward z -> y?"], "1:y"),
    "a backward gives what it read, undecided": (["tanh y -> q", "relu.backward y? -> y?"], "1:y"),
    "a scalar enters": (["add x s? -> y?", "relu y? -> z"], ""),
    "a mask enters": (["add x m? -> y?", "relu y? -> z"], ""),
    "a number that was compared": (["relu s -> y", "add x s? -> z"], ""),
    "an empty tensor": (["relu x -> y e?"], ""),
    "an empty output alone": (["relu x -> y?", "add y? -> e"], "0:y 1:y"),
    "a backward reads a tensor of the forward": (
        ["linear x w -> y?", "relu y? -> z", "relu.backward z y? -> g"], ""),
    "a backward alone reads a tensor of the forward": (["linear x w -> y?", "relu.backward x y? -> g"], "0:y 1:y"),
    "a gradient between": (["linear.backward x -> g?", "relu.backward g? -> h"], ""),
    "a gradient leaves": (["linear.backward x -> g?", "relu.backward g? -> h?"], "0:g 1:g 1:h"),
    "nothing but a number enters": (["tanh x -> z", "dropout s? -> y?", "relu y? -> y?"], "1:s 1:y 2:y 2:y"),
    "nothing but a parameter was compared": (["linear s? w -> y?", "relu y? -> y?"], "0:s 0:y 1:y 1:y"),
    "an input was compared": (["add s? x -> y?", "relu y? -> y?"], ""),
    "uninitialised memory": (["empty x -> y?"], ""),
    "uninitialised memory is read": (["empty x -> y?", "add y? -> z"], "1:y"),
}  # fmt: skip
