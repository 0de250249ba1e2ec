"""Makes the dumps of a network: every framework clean and struck, with the truth of each pair, in a folder.

{folder}/{suite}{seed}_{network}/{format of a framework}/{clean | 0_epsilon | …}      dumps
{folder}/{suite}{seed}_{network}/truth.json                                           see Family
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, Sequence

import numpy as np

from tests.corpus.frameworks import coding, dumps, truth
from tests.corpus.frameworks.faults import FAULTS
from tests.corpus.frameworks.tape import Call, Strike

FORMATS = {  # recorder: what its dumps are
    "msprobe": "msprobe", "mix": "mix", "modules": "modules", "statistics": "statistics", "aten": "fx", "ort": "slots",
    "ortopt": "slots", "tf": "graph", "jax": "slots", "own": "msprobe", "ownstat": "statistics",
}  # fmt: skip
PAIRS = (
    "ort/msprobe", "ortopt/msprobe", "aten/msprobe", "tf/msprobe", "jax/msprobe", "ort/aten", "tf/ort", "own/modules",
    "own/mix", "ort/statistics", "ownstat/statistics",
)  # fmt: skip
UNORDERED = {"bert", "unet", "gpt2", "t5"}  # networks whose JAX dump is an .npz, which has no order
SHAPES = {"images": (2, 3, 16, 16), "tokens": (2, 12)}


class Recorder(NamedTuple):
    """record: a strike → calls and, of a graph, what each reads."""

    record: Callable[[Optional[Strike]], tuple[list[Call], dict[str, list[str]]]]


class Network(NamedTuple):
    name: str
    module: Any
    given: Any
    coded: Callable[[coding.Coding, coding.Value], coding.Value]
    own: bool

    def weights(self) -> dict[str, np.ndarray]:
        return {name: one.detach().numpy() for name, one in self.module.state_dict().items()}


def network(suite: str, name: str, seed: int) -> Network:
    """Return a network with weights and an input drawn from a seed."""
    import torch

    if suite == "open":
        from tests.corpus.frameworks.coded_networks import CODED, OWN
        from tests.corpus.frameworks.networks import IMAGES
        from tests.corpus.frameworks.networks import OPEN as MADE
    else:
        from tests.corpus.frameworks.held_coded import CODED, OWN  # type: ignore[assignment]
        from tests.corpus.frameworks.held_networks import HELD as MADE  # type: ignore[assignment]
        from tests.corpus.frameworks.held_networks import IMAGES
    torch.manual_seed(seed * 1009 + zlib.crc32(name.encode()) % 1000)
    module = MADE[name]().eval()
    with torch.no_grad():
        for word, one in module.named_parameters():
            if one.ndim > 1:
                one.copy_(torch.randn_like(one) * _deviation(word, tuple(one.shape)))
            elif word.endswith("bias"):
                one.copy_(torch.randn_like(one) * 0.2)
            else:
                one.copy_(1 + torch.randn_like(one) * 0.2)
        for word, one in module.named_buffers():
            if word.endswith("running_mean"):
                one.copy_(torch.randn_like(one) * 0.3)
            elif word.endswith("running_var"):
                one.copy_(torch.rand_like(one) + 0.5)
    given = torch.randn(SHAPES["images"]) if name in IMAGES else torch.randint(0, 61, SHAPES["tokens"])
    return Network(name, module, given, CODED[name], name in OWN)


def _deviation(word: str, shape: tuple[int, ...]) -> float:
    if "words" in word or "places" in word or "token" in word:
        return 0.5
    return float(1.2 / np.sqrt(np.prod(shape[1:]) if len(shape) != 2 else min(shape)))


def format_of(word: str, name: str) -> str:
    """Return the format of a recorder's dumps of a network."""
    return "npz" if word == "jax" and name in UNORDERED else FORMATS[word]


def recorders(one: Network, folder: Path) -> dict[str, Recorder]:
    """Return the recorders of a network, by the framework's name."""
    from tests.corpus.frameworks import onnx_recorder, torch_recorder

    found: dict[str, Recorder] = {}

    def eager(strike: Optional[Strike]) -> tuple[list[Call], dict[str, list[str]]]:
        return torch_recorder.eager(one.module, one.given, strike), {}

    for name in ("msprobe", "mix", "modules", "statistics"):
        found[name] = Recorder(eager)
    found["aten"] = Recorder(lambda strike: (torch_recorder.aten(one.module, one.given, strike), {}))
    for name in ("ort", "ortopt"):
        path = folder / f"{name}.onnx"
        onnx_recorder.export(one.module, one.given, path, name == "ortopt")
        model = onnx_recorder.OnnxNetwork(path)
        found[name] = Recorder(lambda strike, model=model: (model.record(one.given.numpy(), strike), {}))  # type: ignore[misc]
    weights = one.weights()
    array = one.given.numpy()
    array = array.transpose(0, 2, 3, 1).copy() if array.ndim == 4 else array.astype(np.int32)
    for name, word in (("tf", "tensorflow"), ("jax", "jax"), ("own", "own"), ("ownstat", "own")):
        if word == "own" and not one.own:
            continue

        def coded(strike: Optional[Strike], word: str = word) -> tuple[list[Call], dict[str, list[str]]]:
            made = coding.CODINGS[word](weights, strike)
            given = array.astype(np.int64) if word == "own" and array.dtype == np.int32 else array
            one.coded(made, coding.Value(given))
            return made.calls, made.sources

        found[name] = Recorder(coded)
    return found


def make(folder: Path, suite: str, name: str, seed: int, faults: int, pairs: Sequence[str] = PAIRS) -> Path:
    """Write the dumps of a network that `pairs` need; return its folder. A folder with a truth.json is left alone."""
    place = folder / f"{suite}{seed}_{name}_{faults}"
    if place.joinpath("truth.json").exists():
        return place
    place.mkdir(parents=True, exist_ok=True)
    made = recorders(network(suite, name, seed), place)
    clean: dict[str, tuple[list[Call], dict[str, list[str]]]] = {}
    sides: dict[str, truth.Side] = {}
    for word in {word for pair in PAIRS for word in pair.split("/")} & {*made}:
        clean[word] = made[word].record(None)
        dumps.write(place / word / "clean", clean[word][0], format_of(word, name), clean[word][1])
        sides[word] = truth.Side(clean[word][0], format_of(word, name))
    struck: dict[str, list[tuple[Strike, list[Call]]]] = {}
    for word in {pair.partition("/")[0] for pair in PAIRS} & {*made}:
        random = np.random.default_rng([seed, zlib.crc32(f"{suite}/{name}/{word}".encode())])
        struck[word] = list(_struck(made[word], clean[word][0], faults, random))
        for k, (strike, calls) in enumerate(struck[word]):
            dumps.write(place / word / f"{k}_{strike.kind}", calls, format_of(word, name), clean[word][1])
    found: dict[str, Any] = {}
    for pair in PAIRS:
        word, _, golden = pair.partition("/")
        if word not in made:
            continue
        known = truth.truth(sides[word], sides[golden])
        cases: dict[str, Any] = {}
        for k, (strike, calls) in enumerate(struck[word]):
            operator = [one for one in clean[word][0] if one.type != "Module"][strike.call].name
            by_figures = format_of(golden, name) == "statistics"
            names = truth.right_names(operator, sides[word], sides[golden], known, calls, clean[word][0], by_figures)
            if names:
                cases[f"{k}_{strike.kind}"] = {"operator": operator, "right": names}
        found[pair] = {**known._asdict(), "cases": cases}
    place.joinpath("truth.json").write_text(json.dumps(found))
    return place


def _struck(recorder: Recorder, clean: Sequence[Call], faults: int, random: np.random.Generator) -> Any:
    """Yield strikes that show, of different kinds, with their calls; the last one is garbage in the first half."""
    calls = [one for one in clean if one.type != "Module"]
    kinds = [kind for kind in FAULTS if kind != "garbage"]
    order = [str(kind) for kind in random.permutation(kinds)]
    found = 0
    for kind in (*order, *order, "garbage"):
        if found == faults and kind != "garbage":
            continue
        fits = [k for k, one in enumerate(calls) if FAULTS[kind].fits(one)]
        if kind == "garbage":
            fits = [k for k in fits if k < len(calls) // 2] or fits
        for call in random.permutation(fits)[:4]:
            strike = Strike(int(call), kind, int(random.integers(1 << 30)))
            made, _ = recorder.record(strike)
            again = [one for one in made if one.type != "Module"][strike.call].outputs[0]
            if _shows(again, calls[strike.call].outputs[0]):
                yield strike, made
                found += 1
                break


def _shows(struck: np.ndarray, clean: np.ndarray) -> bool:
    wide = clean.astype(np.float64)
    return bool(np.linalg.norm(struck - wide) >= truth.LEAST * np.linalg.norm(wide))
