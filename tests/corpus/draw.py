"""What a family is made of: network, size, precision, noise, variation, faults, all drawn from its number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Mapping, NamedTuple, Optional

import numpy as np

from tests.corpus.device import Device, other
from tests.corpus.faults import FAULTS, Fault, Random
from tests.corpus.networks import HELD, OPEN, Size
from tests.corpus.tape import Precision
from tests.corpus.training import Recipe

DOMAINS = {"open": 1, "held": 2, "sample": 3, "open2": 4, "held2": 5, "unseen": 6}  # the sample is as `open`
SIZES = {  # elements of a typical tensor, and how often it is drawn
    "64": (64, 0.12),
    "500": (500, 0.28),
    "4k": (4_000, 0.33),
    "30k": (30_000, 0.2),
    "250k": (250_000, 0.07),
}
NOISES = {"none": 0.2, "order": 0.25, "functions": 0.15, "flips": 0.2, "all": 0.15, "hf32": 0.05}
PRECISIONS: dict[str, tuple[Precision, Precision, float]] = {  # target, golden, how often
    "float32": (Precision(), Precision(), 0.5),
    "bfloat16 autocast / float32": (Precision(half="bfloat16"), Precision(), 0.13),
    "float16 autocast / float32": (Precision(half="float16"), Precision(), 0.05),
    "bfloat16 / float32": (Precision("bfloat16"), Precision(), 0.07),
    "bfloat16 / bfloat16": (Precision("bfloat16"), Precision("bfloat16"), 0.08),
    "bfloat16 autocast / the same": (Precision(half="bfloat16"), Precision(half="bfloat16"), 0.07),
    "float16 / float16": (Precision("float16"), Precision("float16"), 0.04),
    "float16 / float32": (Precision("float16"), Precision(), 0.03),
    "float32 / float64": (Precision(), Precision("float64"), 0.03),
}
PARTS = {  # what was recorded, and how often
    "all": 0.78,
    "inputs": 0.05,
    "outputs": 0.04,
    "forward": 0.04,
    "backward": 0.03,
    "list": 0.04,
    "half": 0.02,
}
FORMATS = {"msprobe": 0.7, "mint": 0.07, "npy": 0.05, "cann": 0.1, "mindspore": 0.08}


HALVES = ("bfloat16", "float16")


class Variation(NamedTuple):
    """A clean kind: the options of target and golden, and the networks that it makes sense in."""

    name: str
    target: Mapping[str, Any]
    golden: Mapping[str, Any] = MappingProxyType({})
    needs: str = ""  # a feature of the network
    held: bool = False
    shared: bool = False  # on both sides: no structure differs
    fails_in: tuple[str, ...] = ()  # types that cannot hold it
    provokes: str = ""  # a kind of fault that it is there for


VARIATIONS = [
    Variation("fused attention", {"attention": "fused"}, {}, "attention"),
    Variation("attention not fused", {}, {"attention": "fused"}, "attention"),
    Variation("one product for q, k, v", {"qkv": "one"}, {}, "qkv"),
    Variation("products apart from their bias", {"linear": "split"}, {}, "linear", held=True),
    Variation("norm in five operators", {"norm": "split"}, {}, "norm"),
    Variation("x · x for x²", {"norm": "split", "square": "mul"}, {"norm": "split"}, "square", held=True),
    Variation("divided for multiplied", {"scale": "div"}, {}, "scale"),
    Variation("SiLU in two operators", {"act": "split"}, {}, "act"),
    Variation("an operator more", {"extra": True}, {}),
    Variation("an operator less", {}, {"extra": True}, held=True),
    Variation("checkpointing", {"checkpoint": True}, {}, held=True),
    Variation("masks of -1e9", {"mask": -1e9}, {"mask": -1e9}, "attention", shared=True, fails_in=("float16",)),
    Variation("masks of -1e4", {"mask": -1e4}, {"mask": -1e4}, "attention", shared=True),
    Variation(
        "masks of the lowest number", {"mask": "lowest"}, {"mask": "lowest"}, "attention", shared=True, held=True
    ),
    Variation("dropout", {"dropout": 0.1}, {"dropout": 0.1}, "dropout", shared=True),
    Variation("captured GELU missing", {"gelu": "hidden"}, {"gelu": "hidden"}, "gelu", shared=True),
    Variation("rotary embedding in operators", {"rope": "seen"}, {"rope": "seen"}, "rope", shared=True),
    Variation("norms in operators on both sides", {"norm": "split"}, {"norm": "split"}, "norm", shared=True),
    Variation("a bfloat16 cast on a side branch", {"side_cast": True}, {"side_cast": True}, shared=True),
    Variation("long sums that cancel", {"cancelling": 64}, {"cancelling": 64}, shared=True),
    Variation("longer sums that cancel", {"cancelling": 256}, {"cancelling": 256}, shared=True, held=True),
    Variation(
        "values around -1e4", {"energy": -1e4}, {"energy": -1e4}, shared=True, fails_in=HALVES, provokes="low_values"
    ),
    Variation(
        "values around -1e5",
        {"energy": -1e5},
        {"energy": -1e5},
        shared=True,
        fails_in=HALVES,
        provokes="low_values",
        held=True,
    ),
    Variation("memory that was not cleared", {"empty": True}, {"empty": True}, shared=True),
    Variation("near ties", {"near_ties": True}, {"near_ties": True}, "near_ties", shared=True),
]


@dataclass(frozen=True)
class Plan:
    """What was drawn, before anything is computed."""

    target: Recipe
    golden: Recipe
    variation: Optional[Variation]
    facts: dict[str, str]
    faults: list[Fault]
    part: str
    everywhere: bool


def pick(r: Random, table: Mapping[str, float]) -> str:
    names = list(table)
    weights = np.array([table[name] for name in names], float)
    return str(names[int(np.searchsorted(np.cumsum(weights) / weights.sum(), r.random_sample()))])


def device_like(r: Random, noise: str, base: Device) -> Device:
    """A second device, as different as the noise says."""
    changes: dict[str, Any] = {}
    if noise in ("order", "all", "hf32"):
        changes.update(block=int(r.choice([16, 32, 64, 128, 256])), order=(base.order + 1 + int(r.randint(2))) % 3)
    if noise in ("functions", "all"):
        changes.update(slope=float(r.uniform(0.5, 2.5)), seed=int(r.randint(1, 1000)))
    if noise in ("flips", "all"):
        changes.update(flips=float(10 ** -r.uniform(0.5, 2.5)), seed=int(r.randint(1, 1000)))
    return other(base, reduced=noise == "hf32", **changes)


def size_like(r: Random, elements: int, image: bool) -> Size:
    """A network whose typical tensor has about so many elements."""
    heads = int(r.choice([2, 4]))
    layers = 1 if elements > 20_000 else int(r.choice([1, 2, 2])) if elements > 2_000 else int(r.choice([1, 2, 3]))
    if image:
        batch = 2 if elements < 2_000 else 4
        edge = 4 if elements < 200 else 8 if elements < 20_000 else 16 if elements < 100_000 else 32
        width = max(4, 4 * round(elements / (batch * edge * edge) / 4))
        return Size(batch, edge, min(width, 96), heads, layers)
    width = 8 * heads if elements > 200 else 4 * heads
    while width * width * 8 < elements and width < 256:
        width *= 2
    rows = max(4, elements // width)
    batch = 2 if rows < 64 else 4 if rows < 600 else 8
    return Size(batch, max(3, min(128, rows // batch)), width, heads, layers)


def facts_of(
    network: str,
    precision: str,
    noise: str,
    size: str,
    steps: int,
    ranks: int,
    part: str,
    level: str,
    task: str,
    format: str,
    variation: Optional[Variation],
    held: bool,
) -> dict[str, str]:
    """What the sheets group the cases of a family by."""
    return {
        "network": network,
        "precision": precision,
        "noise": noise,
        "size": size,
        "steps": str(steps),
        "ranks": str(ranks),
        "part": part,
        "level": level,
        "task": task,
        "format": format,
        "variation": variation.name if variation else "none",
        "held network": str(held),
    }


def plan(domain: str, number: int) -> Plan:
    """What family `number` of a domain is made of."""
    r = Random([DOMAINS[domain], number])
    held = domain == "held"
    only_kinds = held and r.random_sample() < 0.25  # an open network, and kinds that are held
    networks = OPEN if not held or only_kinds else HELD
    network = str(r.choice(sorted(networks)))
    kind = networks[network]
    together = pick(r, {"": 0.9, "data_parallel": 0.025, "split": 0.075})
    if together == "split":
        together = "pipeline_encoder_decoder" if networks is HELD else str(r.choice(["tensor_parallel", "pipeline"]))
    steps = int(r.choice([2, 3])) if r.random_sample() < (0.5 if together == "data_parallel" else 0.16) else 1
    size = pick(r, {name: share for name, (_, share) in SIZES.items()})
    if (steps > 1 or together) and size in ("30k", "250k"):
        size = "4k"
    image = kind.image and together in ("", "data_parallel")
    precision = pick(r, {name: row[2] for name, row in PRECISIONS.items()})
    noise = pick(r, NOISES)
    if precision != "float32" and noise == "hf32":
        noise = "order"
    format = pick(r, FORMATS)
    task = pick(r, {"tensor": 0.82, "statistics": 0.11, "md5": 0.07})
    level = pick(r, {"L1": 0.75, "mix": 0.25})
    part = pick(r, PARTS)
    if format != "msprobe":
        task, level = "tensor", "L1"
    if format == "npy":
        part, steps, together = "outputs", 1, ""
    if format in ("npy", "mint") and "bfloat16" in precision:
        precision = "float32"
    everywhere = r.random_sample() < 0.06 and size in ("64", "500", "4k")
    if everywhere:
        format, task, level, part = "msprobe", "tensor", "L1", "all"
    if task == "md5":
        noise, precision = "none", "float32" if "/ float" in precision else precision
    if level == "mix":
        part = "all"
    target, golden, _ = PRECISIONS[precision]
    if target != golden and Random([DOMAINS[domain], number, 3]).random_sample() < 0.25:  # the golden may be coarser
        target, golden, precision = golden, target, " / ".join(reversed(precision.split(" / ")))
    allowed = [
        v
        for v in VARIATIONS
        if (not v.needs or v.needs in kind.features)
        and (v.held if only_kinds else held or not v.held)
        and not {target.coarsest, golden.coarsest} & set(v.fails_in)
    ]
    variation = allowed[int(r.randint(len(allowed)))] if allowed and r.random_sample() < 0.55 else None
    if variation is not None and (together not in ("", "data_parallel") or (task == "md5" and not variation.shared)):
        variation = None
    base = Device(int(r.choice([16, 32, 64, 128, 256])), int(r.randint(3)), float(r.choice([0.0, 0.0, 1.0])))
    recipe = Recipe(
        network if not together or together == "data_parallel" else together,
        size_like(r, SIZES[size][0], image),
        golden,
        base,
        dict(variation.golden) if variation else {},
        steps,
        together,
        str(r.choice(["sgd", "adamw"])),
        int(r.randint(1 << 30)),
        str(r.choice(["full", "last"])),
        everywhere or format in ("cann", "mindspore"),
        level == "mix",
        256.0 if "float16" in (target.coarsest, golden.coarsest) else 1.0,
    )
    options = dict(variation.target) if variation else {}
    faults = _faults(r, only_kinds, held)
    provoked = {variation.provokes} if variation is not None else set()
    if noise == "none" and target == golden and target.coarsest != "float32":
        provoked |= {"truncation", "weak_function"}  # with equal bits in, a wrong rounding is all that differs
    if not only_kinds:
        faults = [fault for fault in FAULTS if fault.name in provoked] + faults
    known = together if together and together != "data_parallel" else network
    facts = facts_of(
        known,
        precision,
        noise,
        size,
        steps,
        2 if together else 1,
        part,
        level,
        task,
        format,
        variation,
        networks is HELD,
    )
    return Plan(
        replace(recipe, precision=target, device=device_like(r, noise, base), options=options),
        recipe,
        variation,
        facts,
        faults,
        part,
        everywhere,
    )


def _faults(r: Random, only_held: bool, held: bool) -> list[Fault]:
    """In the order in which they are tried; more than will be used, for not every kind fits every network."""
    allowed = [f for f in FAULTS if (f.held if only_held else held or not f.held)]
    weights = np.array([f.weight for f in allowed])
    order = r.choice(len(allowed), size=min(len(allowed), 14), replace=False, p=weights / weights.sum())
    return [allowed[int(k)] for k in order]


def clean_kind(planned: Plan) -> str:
    """What a clean pair is counted under: the most unusual thing about it."""
    if planned.variation is not None:
        return planned.variation.name
    if planned.part != "all" and planned.facts["format"] != "npy":
        return f"recorded: {planned.part}"
    if planned.target.together:
        return "two ranks"
    if planned.target.lengths:
        return "lengths that change"
    if planned.target.steps > 1:
        return f"several steps of {planned.target.update}"
    if planned.target.precision != planned.golden.precision:
        return "another precision"
    return {
        "none": "an exact repeat",
        "order": "another order of sums",
        "functions": "other functions",
        "flips": "other roundings",
        "all": "another device",
        "hf32": "HF32 products",
        "hf32 golden": "HF32 products of the golden",
        "hf32 both": "HF32 products on both sides",
    }[planned.facts["noise"]]
