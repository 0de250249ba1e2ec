"""How long a replay takes: a transformer's forward and backward as msprobe records them, of a size of your choice.

    python -m tests.benchmarks.replay --hidden 512 --layers 4 --tokens 256 --jobs 2
    python -m tests.benchmarks.replay --compare                              values of some 200 MB a side
    python -m tests.benchmarks.replay --compare --hidden 32 --tokens 4 --layers 60          many small tensors

Prints megabytes, records, seconds and megabytes per second, and the largest ratios of what is clean. With --compare
it prints what recomputation adds to a comparison: the target is the same network on an input that is off by NOISE, so
that every error is to be explained. The goal is that recomputation takes at most as long as all the rest.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from npucmp import compare, replay
from tests.recompute.craft import Dump

NOISE = 1e-5  # relative, of the input of the target
RUNS = 3


class Recorder:
    """Calls functions and records them, backwards by the last autograd node's gradients."""

    def __init__(self, dump: Dump) -> None:
        self.dump, self.counts, self.gradients = dump, {}, []  # type: ignore[var-annotated]

    def __call__(self, kind: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        number = self.counts.get(kind, 0)
        self.counts[kind] = number + 1
        out = function(*args, **kwargs)
        name = f"{kind}.{number}"
        self.dump.add(f"{name}.forward", [_plain(one) for one in args], [_plain(out)], kwargs)
        if out.grad_fn is not None:
            out.grad_fn.register_hook(
                lambda handed, given: self.gradients.append((name, [*map(_plain, given)], [*map(_plain, handed)]))
            )
        return out

    def finish(self, loss: Any) -> None:
        loss.backward()
        for name, given, handed in self.gradients:
            self.dump.add(f"{name}.backward", given, handed)


def _plain(one: Any) -> Any:
    if isinstance(one, (list, tuple)):
        return [*map(_plain, one)]
    return one.detach().contiguous().numpy().copy() if isinstance(one, torch.Tensor) else one


def network(call: Recorder, hidden: int, layers: int, tokens: int, heads: int = 8, noise: float = 0.0) -> Any:
    x = torch.randn(2, tokens, hidden)
    x = x * (1 + noise * torch.sin(1e4 * x))

    def weight(*shape: int) -> Any:
        return (torch.randn(*shape) / shape[-1] ** 0.5).requires_grad_()

    def split(one: Any) -> Any:
        return one.view(2, tokens, heads, -1).transpose(1, 2)

    for _ in range(layers):
        gain, shift = torch.ones(hidden, requires_grad=True), torch.zeros(hidden, requires_grad=True)
        normed = call("Functional.layer_norm", F.layer_norm, x, [hidden], gain, shift, 1e-5)
        q, k, v = (
            split(call("Functional.linear", F.linear, normed, weight(hidden, hidden), weight(hidden))) for _ in range(3)
        )
        scores = call("Torch.matmul", torch.matmul, q, k.transpose(-1, -2))
        scores = call("Tensor.__mul__", torch.Tensor.__mul__, scores, (hidden // heads) ** -0.5)
        mixed = call("Torch.matmul", torch.matmul, call("Functional.softmax", F.softmax, scores, dim=-1), v)
        mixed = mixed.transpose(1, 2).reshape(2, tokens, hidden)
        mixed = call("Functional.linear", F.linear, mixed, weight(hidden, hidden), weight(hidden))
        x = call("Tensor.__add__", torch.Tensor.__add__, x, mixed)
        up = call("Functional.linear", F.linear, x, weight(4 * hidden, hidden), weight(4 * hidden))
        down = call("Functional.linear", F.linear, call("Functional.gelu", F.gelu, up), weight(hidden, 4 * hidden))
        x = call("Tensor.__add__", torch.Tensor.__add__, x, down)
    return x.square().mean()


def compared(given: argparse.Namespace) -> None:
    """Print the seconds of a comparison without and with recomputation, medians of runs that take turns."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for side, noise in (("target", NOISE), ("golden", 0.0)):
            torch.manual_seed(0)
            call = Recorder(Dump(Path(folder) / side))
            call.finish(network(call, given.hidden, given.layers, given.tokens, noise=noise))
            paths.append(call.dump.write())
        size = sum(array.nbytes for array in call.dump.arrays.values())
        seconds: dict[str, list[float]] = {"none": [], "auto": []}
        for turn in range(RUNS + 1):  # the first warms the page cache
            for how, some in seconds.items():
                started = time.process_time()
                found = compare(*paths, recompute=how, jobs=1)
                some += [time.process_time() - started] if turn else []
        plain, auto = (median(some) for some in seconds.values())
        share = (auto - plain) / plain
        print(f"{size / 1e6:.0f} MB a side, {len(call.dump.data)} records: without {plain:.2f} s, with {auto:.2f} s "
              f"of one core: ratio {auto / plain:.2f}, recomputation {share:.2f} of all the rest")  # fmt: skip
        print(*found.notes, sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("hidden", 512), ("layers", 4), ("tokens", 256), ("jobs", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--compare", action="store_true", help="compare two such dumps with and without recomputation")
    given = parser.parse_args()
    if given.compare:
        compared(given)
        return
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        call = Recorder(Dump(Path(folder)))
        call.finish(network(call, given.hidden, given.layers, given.tokens))
        path = call.dump.write()
        size = sum(array.nbytes for array in call.dump.arrays.values())
        started = time.monotonic()
        found = replay(path, jobs=given.jobs)
        seconds = time.monotonic() - started
    judged = [row for row in found.rows if row.rms_ratio is not None]
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{size / 1e6:.0f} MB, {len(call.dump.data)} records, {seconds:.1f} s, {size / 1e6 / seconds:.1f} MB/s, "
          f"{most:.0f} MB of memory at most in a child")  # fmt: skip
    print(dict(found.verdicts), f"largest ratios: rms {max(row.rms_ratio for row in judged):.2f}, "
          f"element {max(row.max_ratio for row in judged):.2f}")  # fmt: skip
    for row in found.rows:
        if row.verdict.value not in ("CLEAN", "UNKNOWN"):
            operator = found.replays[0].operators[row.order]
            print(" ", row.verdict.value, operator.name, row.slot, row.rms_ratio, row.max_ratio, row.explanation)
    for row in sorted(judged, key=lambda row: -(row.max_ratio or 0))[:4]:
        print(f"  {found.replays[0].operators[row.order].name} {row.slot}: {row.rms_ratio:.2f}, {row.max_ratio:.2f}")
    slow = sorted(found.rows, key=lambda row: -(row.seconds or 0))[:5]
    print([(found.replays[0].operators[row.order].name, round(row.seconds or 0, 2)) for row in slow])


if __name__ == "__main__":
    main()
