"""What a family of the second generation is made of: the domains `open2`, `held2` and `unseen`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from tests.corpus.device import Device
from tests.corpus.draw import DOMAINS, FORMATS, SIZES, Plan, Variation, device_like, facts_of, pick, size_like
from tests.corpus.faults import FAULTS, Fault, Random
from tests.corpus.networks import Kind
from tests.corpus.second_faults import SECOND_FAULTS
from tests.corpus.second_networks import HELD2, OPEN2, SecondNet
from tests.corpus.tape import Precision
from tests.corpus.training import Recipe
from tests.corpus.unseen import UNSEEN_FAULTS, UNSEEN_NETWORKS


class Domain(NamedTuple):
    """What families are drawn from: networks, those over two ranks, kinds of fault, held variations or others."""

    networks: Mapping[str, Kind]
    together: Sequence[str]
    faults: Sequence[Fault]
    held: bool


SECOND_DOMAINS = {
    "open2": Domain(OPEN2, ("tp_decoder", "pipeline"), [f for f in (*SECOND_FAULTS, *FAULTS) if not f.held], False),
    "held2": Domain(HELD2, ("pipeline_encoder_decoder", "tp_decoder"), [*SECOND_FAULTS, *FAULTS], True),
    "unseen": Domain(UNSEEN_NETWORKS, (), UNSEEN_FAULTS, True),
}
OLD = 0.35  # how often a kind of fault of the first generation is drawn, against one of the second
PRECISIONS: dict[str, tuple[Precision, Precision, float]] = {  # target, golden, how often
    "float32": (Precision(), Precision(), 0.4),
    "bfloat16 / bfloat16": (Precision("bfloat16"), Precision("bfloat16"), 0.12),
    "bfloat16 / float32": (Precision("bfloat16"), Precision(), 0.12),
    "bfloat16 autocast / the same": (Precision(half="bfloat16"), Precision(half="bfloat16"), 0.1),
    "bfloat16 autocast / float32": (Precision(half="bfloat16"), Precision(), 0.08),
    "float16 / float16": (Precision("float16"), Precision("float16"), 0.06),
    "float16 autocast / float32": (Precision(half="float16"), Precision(), 0.06),
    "float16 autocast / the same": (Precision(half="float16"), Precision(half="float16"), 0.06),
}
NOISES = {
    "none": 0.13, "order": 0.16, "functions": 0.08, "flips": 0.13, "all": 0.14, "hf32": 0.14, "hf32 golden": 0.1,
    "hf32 both": 0.12,
}  # fmt: skip
PARTS = {"all": 0.86, "inputs": 0.03, "outputs": 0.02, "forward": 0.03, "backward": 0.02, "list": 0.04}
KERNELS = {"attention": "attention", "norm": "residual and norm", "swiglu": "SwiGLU"}


def _variations() -> list[Variation]:
    """Each on the target, the golden and both; those of the golden alone are held."""
    found = []
    kernels: list[tuple[str, str, dict[str, Any]]] = [
        (f"{words} without a record", name, {"unrecorded": (name,)}) for name, words in KERNELS.items()
    ]
    kernels.append(("kernels without a record", "swiglu", {"unrecorded": tuple(KERNELS)}))
    for name, needs, options in (*kernels, ("layers computed again", "layers", {"checkpoint": True})):
        provokes = "" if needs == "layers" else "fused_kernel"
        found.append(Variation(f"{name}, target", options, {}, needs, provokes=provokes))
        found.append(Variation(f"{name}, golden", {}, options, needs, held=True))
        found.append(Variation(f"{name}, both", options, options, needs, shared=True, provokes=provokes))
    for told in ("argument", "mask", ""):
        options = {"dropout": 0.1, "seed_told": told}
        name = f"dropout whose seed is {told or 'not told'}"
        found.append(Variation(name, options, options, "dropout", shared=True, provokes="another_seed", held=not told))
    options = {"dropout": 0.1, "checkpoint": True}
    found.append(
        Variation("dropout computed again", options, options, "layers dropout", shared=True, provokes="seed_again")
    )
    for value in (-1e4, "lowest"):
        options = {"mask": value}
        name = "masks of -1e4" if value == -1e4 else "masks of the lowest number"
        held = value == "lowest"
        found.append(Variation(name, options, options, "attention", held, shared=True, provokes="scaled_mask"))
    return found


VARIATIONS = _variations()


def fits(variation: Variation, features: Sequence[str]) -> bool:
    """Whether a network has all that a variation needs."""
    return set(variation.needs.split()) <= {*features}


def device_for(r: Random, noise: str, golden: Device) -> Device:
    """Of the target, when the golden is computed on this one."""
    if noise == "hf32 golden":
        return replace(device_like(r, "order", golden), reduced=False)
    if noise in ("hf32", "hf32 both"):
        return device_like(r, "hf32", golden)
    return device_like(r, noise, golden)


def plan(domain: str, number: int) -> Plan:
    """What family `number` of a domain is made of."""
    drawn, r = SECOND_DOMAINS[domain], Random([DOMAINS[domain], number])
    network = str(r.choice(sorted(drawn.networks)))
    kind = drawn.networks[network]
    together = ""
    if r.random_sample() < 1 / 3:
        together = str(r.choice(["data_parallel", *drawn.together, *drawn.together]))
    trains = "training" in kind.features or together in drawn.together
    steps = int(r.choice([1, 1, 2, 3])) if trains else int(r.choice([1, 3]))
    size = pick(r, {name: share for name, (_, share) in SIZES.items()})
    if (steps > 1 or together or "cache" in kind.features) and size in ("30k", "250k"):
        size = "4k"
    image = kind.image and together in ("", "data_parallel")
    length = size_like(r, SIZES[size][0], image)
    precision, noise, format = pick(r, {name: row[2] for name, row in PRECISIONS.items()}), pick(r, NOISES), "msprobe"
    task, part = pick(r, {"tensor": 0.84, "statistics": 0.11, "md5": 0.05}), pick(r, PARTS)
    level = "mix" if part == "all" and r.random_sample() < 0.2 else "L1"
    formats = {name: share for name, share in FORMATS.items() if name != "npy"}
    if task == "tensor" and level == "L1" and part == "all":
        format = pick(r, formats)
    if format == "mint" and "bfloat16" in precision:
        precision = "float32"
    if task == "md5":
        noise, precision = "none", "float32" if "/ float" in precision else precision
    if precision != "float32" and "hf32" in noise:
        noise = "order"
    target, golden, _ = PRECISIONS[precision]
    known = network if together in ("", "data_parallel") else together
    variation = _variation(r, drawn, FEATURES.get(known) or kind.features, task, format)
    base = Device(int(r.choice([16, 32, 64, 128, 256])), int(r.randint(3)), float(r.choice([0.0, 0.0, 1.0])))
    base = replace(base, reduced=noise in ("hf32 golden", "hf32 both"))
    shared: dict[str, Any] = {"by_step": steps > 1}
    if {target.base, golden.base} & {"bfloat16", "float16"} and r.random_sample() < 0.7:
        shared["cast_up"] = True
    hides = "attention" in str((variation.target, variation.golden)) if variation else False
    if hides or r.random_sample() < 0.5:  # what a kernel without a record reads is recorded, else it would be open
        shared["rope"] = "seen"
    halves = "float16" in (target.coarsest, golden.coarsest)
    lengths: tuple[int, ...] = ()
    if steps > 1 and not together and "length" in kind.features and r.random_sample() < 0.5:
        lengths = tuple(max(3, length.length - k * int(r.randint(1, 3))) for k in range(steps))
    recipe = Recipe(
        known,
        length,
        golden,
        base,
        {**shared, **(variation.golden if variation else {})},
        steps,
        together,
        str(r.choice(["sgd", "adamw"])),
        int(r.randint(1 << 30)),
        str(r.choice(["full", "last"])),
        format in ("cann", "mindspore"),
        level == "mix",
        float(r.choice([128.0, 512.0, 1024.0])) if halves else 1.0,
        lengths,
        SecondNet,
    )
    ranks = 2 if together else 1
    facts = facts_of(known, precision, noise, size, steps, ranks, part, level, task, format, variation, drawn.held)
    facts["lengths"] = "change" if lengths else "stay"
    device = device_for(r, noise, base)
    options = {**shared, **(variation.target if variation else {})}
    faults = _faults(r, drawn.faults, variation.provokes if variation else "")
    return Plan(
        replace(recipe, precision=target, device=device, options=options),
        recipe,
        variation,
        facts,
        faults,
        part,
        False,
    )


FEATURES = {
    "tp_decoder": ("attention", "norm", "swiglu"),
    "pipeline": ("layers", "dropout"),
    "pipeline_encoder_decoder": ("layers", "dropout"),
}


def _variation(r: Random, drawn: Domain, features: Sequence[str], task: str, format: str) -> Optional[Variation]:
    """One that fits, or none; a graph holds every kernel, and checksums compare equal structures alone."""
    graph = format in ("cann", "mindspore")
    allowed = [
        one
        for one in VARIATIONS
        if fits(one, features)
        and (drawn.held or not one.held)
        and (one.shared or task != "md5")
        and not (graph and ("unrecorded" in {**one.target, **one.golden} or one.target.get("seed_told")))
    ]
    if not allowed or r.random_sample() > 0.7:
        return None
    groups = list(dict.fromkeys(one.provokes or one.needs for one in allowed))
    group = groups[int(r.randint(len(groups)))]
    chosen = [one for one in allowed if (one.provokes or one.needs) == group]
    return chosen[int(r.randint(len(chosen)))]


def _faults(r: Random, allowed: Sequence[Fault], provoked: str) -> list[Fault]:
    """In the order in which they are tried; what the variation is there for comes first."""
    weights = np.array([f.weight * (OLD if f in FAULTS else 1.0) for f in allowed])
    order = r.choice(len(allowed), size=min(len(allowed), 14), replace=False, p=weights / weights.sum())
    first = [f for f in allowed if f.name == provoked]
    return first + [allowed[int(k)] for k in order if allowed[int(k)].name != provoked]
