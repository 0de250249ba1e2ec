"""Score npucmp on generated pairs of checkpoints: clean pairs silent, faults at the right tensor, false AGREES."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Iterator, NamedTuple, Optional

import numpy as np

import npucmp
from npucmp.errors import NpucmpError
from tests.corpus.weights import files
from tests.corpus.weights.conversions import CONVERSIONS, Converted
from tests.corpus.weights.faults import AFTER, BEFORE
from tests.corpus.weights.files import Stored
from tests.corpus.weights.networks import NETWORKS, Network

FAULTS = 2  # faults of a kind before the conversion that are drawn for each pair of network and conversion


class Case(NamedTuple):
    """A pair: network, conversion, fault ("" for a clean pair), the ranks of the target, expressions of names that may
    be first. `missing`: nothing can be decided."""

    network: str
    conversion: str
    fault: str
    made: Converted
    truth: tuple[str, ...] = ()
    missing: bool = False

    @property
    def name(self) -> str:
        return f"{self.network}/{self.conversion}/{self.fault or 'clean'}"


class Outcome(NamedTuple):
    """The exit status, the first place with its evidence, and the share of elements that were compared."""

    case: Case
    status: int
    first: str
    evidence: str
    share: float

    @property
    def is_right(self) -> bool:
        if not self.case.fault:
            return self.status == 0 and self.share >= 0.99
        if self.case.missing:
            return self.status == 2
        return self.status == 1 and any(re.search(one, self.first) for one in self.case.truth)


def cases(seed: int) -> Iterator[Case]:
    """The pairs of a seed."""
    for number, (conversion, (make, kinds)) in enumerate(CONVERSIONS.items()):
        for at, kind in enumerate(kinds):
            own = [seed, number, at]
            rng = np.random.default_rng(own)
            net = NETWORKS[kind](rng, str(rng.choice(["float32", "float32", "bfloat16"])))
            made = make(net, np.random.default_rng([*own, 1]))
            yield Case(net.kind, conversion, "", made)
            yield from _before(net, conversion, made, [*own, 1], rng)
            for name, fault in AFTER.items():
                broken = fault(made, rng)
                if broken is not None and (rng.random() < 0.5 or not broken.missing):
                    yield Case(
                        net.kind, conversion, name, made._replace(ranks=broken.ranks), broken.truth, broken.missing
                    )


def _before(net: Network, conversion: str, made: Converted, own: list[int], rng: np.random.Generator) -> Iterator[Case]:
    names = rng.permutation([*BEFORE])
    drawn = 0
    for name in names:
        broken = BEFORE[name](net, rng)
        if broken is None or drawn == FAULTS:
            continue
        faulty = CONVERSIONS[conversion][0](net._replace(tensors=broken.tensors), np.random.default_rng(own))
        if _equal(faulty, made):
            continue
        drawn += 1
        truth = tuple(_expression(one, made.golden) for one in sorted(broken.truth))
        yield Case(net.kind, conversion, str(name), made._replace(ranks=faulty.ranks), truth)


def _equal(one: Converted, other: Converted) -> bool:
    pairs = (
        (a.values, other.ranks[folder][name].values) for folder, own in one.ranks.items() for name, a in own.items()
    )
    return all(np.array_equal(a, b, equal_nan=False) for a, b in pairs)


def _expression(name: str, golden: dict[str, Stored]) -> str:
    """The golden's name of a tensor of the network, as an expression."""
    if name in golden:
        return f"^{re.escape(name)}$"
    bare = name.removesuffix(".weight")
    if any(bare in one for one in golden):
        return re.escape(bare)
    layer = re.search(r"layers\.(\d+)\.", name)
    table = {
        "input_layernorm": "layer_norm_weight",
        "post_attention_layernorm": "layer_norm_weight",
        "q_proj": "linear_qkv",
        "k_proj": "linear_qkv",
        "v_proj": "linear_qkv",
        "o_proj": "linear_proj",
        "gate_proj": "linear_fc1",
        "up_proj": "linear_fc1",
        "down_proj": "linear_fc2",
        "embed_tokens": "word_embeddings",
        "lm_head": "output_layer",
        "model.norm": "final_layernorm",
    }
    kind = next(new for old, new in table.items() if old in name)
    return rf"\.{layer[1]}\..*{kind}" if layer else kind


def write(case: Case, folder: Path) -> tuple[Path, Path]:
    """The checkpoints of a pair."""
    target, golden = folder / "target", folder / "golden"
    for place, tensors in case.made.ranks.items():
        own = target / place
        own.mkdir(parents=True, exist_ok=True)
        if case.made.kind == "pt":
            files.torch_save(own / "pytorch_model.bin", tensors)
        elif case.made.kind == "megatron":
            files.torch_save(own / "model_optim_rng.pt", tensors, {"padded": 1})
        elif case.made.kind == "npz":
            files.npz(own / "model.npz", tensors)
        elif case.made.kind == "sharded":
            files.sharded(own, tensors, 2)
        else:
            files.safetensors(own / "model.safetensors", tensors)
    golden.mkdir(parents=True)
    files.safetensors(golden / "model.safetensors", case.made.golden)
    if case.made.config is not None:
        target.joinpath("config.json").write_text(json.dumps(case.made.config))
    return target, golden


def outcome(case: Case) -> Outcome:
    """What npucmp says about a pair."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            report = npucmp.compare(*write(case, Path(folder)), jobs=1)
        except NpucmpError as error:
            return Outcome(case, 2, "", str(error), 0.0)
        first = next(iter(report.roots), None)
        evidence = first.because if first is not None else ""
        share = report.coverage.share
        return Outcome(case, report.exit_status, first.pair.operator.name if first else "", evidence, share)


def score(seed: int, only: Optional[str] = None) -> list[Outcome]:
    """The outcomes of a seed; `only` is a part of the names of cases."""
    return [outcome(case) for case in cases(seed) if only is None or only in case.name]
