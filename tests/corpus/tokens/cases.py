"""The cases of a seed: clean pairs, faults and traps, over layouts, names, formats and types."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Iterator, NamedTuple, Optional

import numpy as np

from tests.corpus.tokens import layouts
from tests.corpus.tokens.dumps import Style, write
from tests.corpus.tokens.faults import Fault, draw
from tests.corpus.tokens.layouts import PADDING, Step
from tests.corpus.tokens.network import VOCABULARY, Network, Record

PAD = 0
KINDS = (
    "packed",
    "left",
    "order",
    "single",
    "turned",
    "lead",
    "decoded",
    "batched",
    "chunked",
    "unpadded",
    "flat",
    "apart",
    "wider",
    "reversed",
    "golden turned",
)
TRAPS = ("dropped", "swapped", "inner padding", "another id", "cut", "statistics")


class Case(NamedTuple):
    """A pair of dumps. `truth`: operator, request and position of a fault, None of a clean pair; `trap`: what the
    target lacks or exchanges, "" otherwise."""

    name: str
    target: Path
    golden: Path
    truth: Optional[tuple[str, int, int]] = None
    trap: str = ""


def cases(seed: int, clean: int, faulty: int, traps: int, folder: Optional[Path] = None) -> Iterator[Case]:
    """The cases of a seed, one after the other; their dumps are removed with the next one."""
    for number in range(clean + faulty + traps):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            what = "clean" if number < clean else "fault" if number < clean + faulty else "trap"
            yield case(seed, number, what, Path(place))


def case(seed: int, number: int, what: str, place: Path) -> Case:
    """One case: its draw depends on the seed and the number alone."""
    generator = np.random.default_rng([seed, number])
    kind = KINDS[number % len(KINDS)]
    lengths = [
        int(one) for one in generator.integers(2, int(generator.choice([6, 10, 24])), int(generator.integers(2, 7)))
    ]
    if kind == "unpadded" or kind == "flat":
        lengths = [lengths[0]] * len(lengths)
    if kind == "left" and len(set(lengths)) == 1:
        lengths[0] += 1
    if kind == "turned" and len(set(lengths)) == 1 and lengths[0] == len(lengths):
        lengths[0] += 1
    ids = [generator.integers(1, VOCABULARY, length) for length in lengths]
    if generator.random() < 0.25:  # a system prompt
        for one in ids[1:]:
            shared = min(len(one) - 1, len(ids[0]) - 1, 8)
            one[:shared] = ids[0][:shared]
    dtype = "bfloat16" if generator.random() < 0.25 else "float32"
    form = "L0" if dtype == "bfloat16" or generator.random() < 0.5 else "npy"
    names = (
        "vllm"
        if form == "L0" and kind in ("packed", "order", "decoded", "chunked", "single") and generator.random() < 0.4
        else "equal"
    )
    has_ids, extras = generator.random() < 0.6, generator.random() < 0.5
    heads = names == "equal" and bool(generator.random() < 0.3) and "turned" not in kind
    style = Style(form, names, bool(has_ids), bool(extras), str(generator.choice(["pt", "npy"])), dtype, heads)
    network = Network(int(generator.integers(1 << 30)), dtype)
    target, golden = _layouts(kind, generator, lengths)
    requests = [
        *dict.fromkeys(int(one) for step in golden for one in step.tokens.reshape(-1, 2)[:, 0] if one != PADDING)
    ]
    if golden[0].tokens.ndim == 3:
        requests.sort()
    fault = draw(generator, lengths, requests, names == "equal", dtype == "bfloat16") if what == "fault" else None
    trap = TRAPS[number % len(TRAPS)] if what == "trap" else ""
    exact = network.run(ids, True)
    right = network.run(ids, False)
    wrong = network.run(ids, False, fault.change, fault.attend) if fault is not None else right
    if trap:
        target, golden, style = _trapped(trap, lengths, style, generator)
        if trap == "another id":
            other = [one.copy() for one in ids]
            other[0][-1] = other[0][-1] % (VOCABULARY - 1) + 1
            wrong = network.run(other, False)
    padding = np.full(8, PAD)
    pads = network.run(
        [padding], False, lambda path, one: [each * np.float32(1.5) for each in one] if "core" in path else one
    )
    act = style.names == "equal"
    _write(place / "target", target, wrong, pads, style, style.names == "vllm", act)
    _write(place / "golden", golden, exact, network.run([padding], True), style, False, act)
    truth = _truth(fault, right, wrong, requests, dtype == "bfloat16") if fault is not None else None
    if truth is not None and kind == "lead" and not extras:  # nothing shows where a request ends
        truth = truth[0], 0, sum(lengths[: truth[1]]) + truth[2]
    label = f"{seed}.{number} {what} {trap or kind} {style.form} {style.dtype} {style.names}"
    more = ["no-ids"] * (not style.ids) + ["extras"] * style.extras + ["heads"] * style.heads
    label = " ".join([label, *more, str(lengths)])
    return Case(f"{label} {fault or ''}", place / "target", place / "golden", truth, trap or "")


def _write(
    folder: Path, steps: list[Step], records: list[Record], pads: list[Record], style: Style, fused: bool, act: bool
) -> None:
    keep = [at for at, one in enumerate(records) if act or one.kind != "SiluAndMul"]
    write(folder, steps, [records[at] for at in keep], [pads[at] for at in keep], style, fused)


def _layouts(kind: str, generator: np.random.Generator, lengths: list[int]) -> tuple[list[Step], list[Step]]:
    """The layouts of target and golden."""
    every = [*range(len(lengths))]
    mixed = [int(one) for one in generator.permutation(len(lengths))]
    mixed = mixed if mixed != every else every[::-1]
    left = bool(generator.random() < 0.5)
    wide = layouts.padded(lengths, every, left)
    if kind == "packed":
        return layouts.packed(lengths, every), wide
    if kind == "left":
        return layouts.padded(lengths, every, not left), wide
    if kind == "order":
        return layouts.packed(lengths, mixed), layouts.packed(lengths, every) if left else wide
    if kind == "single":
        return layouts.packed(lengths, mixed), layouts.packed(lengths, [mixed[-1]], True)
    if kind == "turned":
        return layouts.padded(lengths, every, left, turned=True), wide
    if kind == "lead":
        return layouts.packed(lengths, every, True), layouts.packed(lengths, every)
    if kind == "decoded":
        return layouts.decoded(lengths, every, int(generator.integers(1, 4)), False), wide
    if kind == "batched":
        return layouts.decoded(lengths, every, int(generator.integers(1, 4)), True), wide
    if kind == "chunked":
        return layouts.chunked(lengths, every, int(generator.integers(3, 8))), wide
    if kind == "wider":
        return layouts.padded(lengths, every, left, wide=int(generator.integers(1, 4))), wide
    if kind == "reversed":
        return wide, layouts.packed(lengths, mixed if left else every)
    if kind == "golden turned":
        return layouts.packed(lengths, mixed if left else every), layouts.padded(lengths, every, turned=True)
    if kind == "apart":
        return layouts.one_by_one(lengths, mixed), wide
    return layouts.packed(lengths, every if kind == "flat" else mixed), wide


def _trapped(
    trap: str, lengths: list[int], style: Style, generator: np.random.Generator
) -> tuple[list[Step], list[Step], Style]:
    every = [*range(len(lengths))]
    golden = layouts.padded(lengths, every)
    tokens = layouts.packed(lengths, every)[0].tokens
    if trap == "dropped":
        tokens = tokens[tokens[:, 0] != len(lengths) - 1]
    elif trap == "swapped":
        tokens[[0, 1]] = tokens[[1, 0]]
    elif trap == "inner padding":
        tokens = np.concatenate([tokens[:1], np.array([[PADDING, 0]]), tokens[1:]])
    elif trap == "cut":
        tokens = tokens[:-1]
    elif trap == "statistics":
        style = style._replace(form="statistics")
    return [Step(tokens)], golden, style


def _truth(
    fault: Fault, right: list[Record], wrong: list[Record], requests: list[int], coarse: bool
) -> tuple[str, int, int]:
    """The operator and the first token of the golden's requests at which the target differs by more than rounding."""
    least = 0.02 if coarse else 1e-5
    for one, other in zip(right, wrong):
        for a, b in zip(one.outputs, other.outputs):
            for number, request in enumerate(requests):
                error = np.abs(a[request] - b[request]).max(1) > least * np.abs(a[request]).max(1)
                if error.any():
                    return one.path, number, int(error.argmax())
    raise ValueError(f"{fault} changes nothing")
