"""The cases of a seed: a clean pair or a fault, its devices, and the dumps of the three runs.

The size of a fault is measured: the error that the target's kernel adds, over that of the golden's kernel on the same
inputs, or of one rounding. A fault is `clear` if this ratio is at least CLEAR; smaller ones may be missed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional

import numpy as np

from tests.corpus.three_runs.kernels import BITS, Device, Fault, Kernels
from tests.corpus.three_runs.networks import NETWORKS, Net, Plan, Size, run
from tests.corpus.writers.msprobe import Style, names, write

CLEAR = 1.5  # Neuron's alarm
FACTORS = 1.002, 1.003, 1.004, 1.006, 1.01, 1.02, 1.05


@dataclass(frozen=True)
class Case:
    """A case. kind: clean, factor, zero, floor, bits, or "all zero": each operator of a kind rounds toward zero.

    truth     the name of the faulty operator, the first one of a kind
    strength  the measured ratio of the fault
    """

    name: str
    kind: str
    network: str
    dtype: str
    steps: int
    truth: str = ""
    strength: float = 1.0

    @property
    def is_clear(self) -> bool:
        return self.strength >= CLEAR


def cases(seed: int, clean: int, faulty: int, out: Path) -> Iterator[tuple[Case, Path]]:
    """Yield cases with the folders of their dumps: target, golden, truth."""
    for number in range(clean + faulty):
        place = out / f"{seed}-{number}"
        yield write_case(seed, number, number < clean, place), place


def write_case(seed: int, number: int, is_clean: bool, place: Path) -> Case:
    draw = random.Random(f"three runs {seed} {number}")
    network = draw.choice([*NETWORKS])
    size = Size(draw.randint(2, 8), draw.choice((32, 64)), draw.choice((2, 4)), draw.choice((16, 32, 48)))
    if network == "convolutions":
        size = size._replace(tokens=48)
    dtype, eight = draw.choice((("bfloat16", False), ("bfloat16", False), ("float16", False), ("bfloat16", True)))
    wide = draw.choice((24, 18, 16) if dtype == "float16" else (24, 16, 14))
    golden = Device(dtype, draw.choice((16, 32, 64)), draw.random() < 0.5, draw.random() < 0.4, False, eight, wide)
    target = golden._replace(block=draw.choice((8, 16, 32, 64, 128)), reverse=draw.random() < 0.5)
    target = target._replace(inside=draw.random() < 0.4)
    if target.inside and not golden.inside and draw.random() < 0.7:
        target = target._replace(inside=False)  # more roundings than the golden's, which few kernels have
    truth = Device(draw.choice(("float32", "float32", "float64")), 1 << 20)
    steps, weights_seed = draw.choice((1, 1, 2, 3)), seed * 1000 + number
    weights: dict[str, np.ndarray] = {}
    first, net = run(network, Kernels(golden), weights, weights_seed, 0, size, None)
    weights.update({name: weights_of(net, name) for name in weights} if draw.random() < 0.75 else {})
    fault, kind, plan, strength = None, "clean", None, 1.0
    style = Style(complete=False, mint=draw.random() < 0.3)
    if not is_clean:
        at = draw.randrange(len(net.own))
        fault, kind = _fault(draw, net, at, dtype)
        calls = [at]
        if kind == "all zero":
            calls = [n for n, (function, _) in net.own.items() if function == net.own[at][0]]
        plan = Plan(frozenset(calls), fault)
        strength = _strength(net, calls[0], target, golden, fault)
    for side, device, planned in (("golden", golden, None), ("target", target, plan), ("truth", truth, None)):
        runs = [run(network, Kernels(device), weights, weights_seed, step, size, planned)[0] for step in range(steps)]
        write(place / side, runs, style)
    named = names(first, style)
    wrong = named[first.records[min(plan.calls)]] if plan is not None else ""
    words = f"{seed}/{number} {network} {dtype}{' fp8' if eight else ''} {size.layers} layers {steps} steps {kind}"
    words += f" {fault.size:g} at {wrong}" if fault is not None else ""
    return Case(words, kind, network, "fp8" if eight else dtype, steps, wrong, strength)


def weights_of(net: Net, name: str) -> np.ndarray:
    """Return a weight as the device holds it: the checkpoint of the run in float32 has the same numbers."""
    return net._known[name].values if name in net._known else net.weights[name]


def _fault(draw: random.Random, net: Net, at: int, dtype: str) -> tuple[Fault, str]:
    kinds = ["factor", "factor", "factor", "zero", "floor", "all zero"]
    function = net.own[at][0]
    if function in ("linear", "matmul", "conv2d", "layer_norm", "rms_norm", "softmax", "attention"):
        kinds += ["bits", "bits"]
    kind = draw.choice(kinds)
    if kind == "factor":
        return Fault("factor", draw.choice(FACTORS)), kind
    if kind == "bits":
        return Fault("bits", float(draw.choice((8, 9, 10) if dtype == "bfloat16" else (10, 11, 12)))), kind
    return Fault("zero" if kind == "all zero" else kind), kind


def _strength(net: Net, at: int, target: Device, golden: Device, fault: Optional[Fault]) -> float:
    function, arguments = net.own[at]
    exact = getattr(Kernels(Device("float64")), function)(*arguments)
    faulty, right = Kernels(target), Kernels(golden)
    faulty.fault = fault
    errors = [float(np.linalg.norm(getattr(one, function)(*arguments) - exact)) for one in (faulty, right)]
    rounding = 0.4 * 2.0 ** -BITS[golden.dtype] * float(np.linalg.norm(exact))  # of a golden that is exact
    return errors[0] / max(errors[1], rounding) if errors[0] else 1.0
