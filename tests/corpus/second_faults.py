"""Kinds of fault of the second generation. They strike as those of faults.py do, and in two more ways:

"sites"     several executions at once: make(site, all sites, random numbers) → plants
"weights"   all parameters: make(setting, random numbers, their names)
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np

from tests.corpus.device import Arithmetic, Array
from tests.corpus.faults import (
    NORM_EPS,
    Fault,
    Made,
    Random,
    Setting,
    Site,
    is_smooth,
    of,
    on_output,
    size,
    smooth_gradient,
)
from tests.corpus.operators import CONTRACTIONS, NORMS, OPERATORS, softmax
from tests.corpus.tape import Plant

# Everywhere at once


def kind_gradient(site: Site, every: Sequence[Site], r: Random) -> list[Plant]:
    """One wrong formula of the gradient in all operators of a kind."""
    seed = r.randint(1 << 30)
    alike = [one for one in every if one.address[2:4] == site.address[2:4] and one.out is not None]
    return [smooth_gradient(one, Random(seed)) for one in alike]


def kind_scale(site: Site, every: Sequence[Site], r: Random) -> list[Plant]:
    """All that the operators of a kind write is off by one factor."""
    factor = 1.0 + size(r, 3.0, 0.6)
    alike = [one for one in every if one.address[2:4] == site.address[2:4] and one.out is not None]
    return [Made(one, outputs=on_output(lambda y: y * factor)) for one in alike]


def all_weights(setting: Setting, r: Random, names: Sequence[str]) -> None:
    """One factor in all parameters, as of a wrong scale when they were stored."""
    factor = 1.0 + size(r, 3.5, 1.0)
    setting.all_ranks = True
    for name in names:
        setting.weights[name] = lambda v: np.asarray((v * factor).astype(np.float32), np.float64)


def decay_missing(setting: Setting, r: Random) -> None:
    """An update without weight decay: one factor in all parameters of the next step."""
    setting.optimizer["decay"] = 0.0


# Of another time or place


def step_before(site: Site, every: Sequence[Site], r: Random) -> list[Plant]:
    """From the second step on an operator writes what it should have written in the step before."""
    right: dict[int, Array] = {}

    def late(step: int) -> Any:
        def outputs(values: list[Any], memory: list[Any]) -> list[Any]:
            right[step] = values[0]
            before = right.get(step - 1)
            fits = before is not None and np.shape(before) == np.shape(values[0])
            return [before, *values[1:]] if fits else values

        return outputs

    alike = [one for one in every if one.address[1:] == site.address[1:]]
    return [Made(one, outputs=late(one.address.step)) for one in alike] if len(alike) > 1 else []


def rank_lost(site: Site, every: Sequence[Site], r: Random) -> list[Plant]:
    """One rank gets nothing of the others, in any sum."""
    alike = [one for one in every if one.address.kind == site.address.kind and one.address.rank == site.address.rank]
    return [Made(one, inputs=lambda v, k: (v[:1], k)) for one in alike]


def cache_row(site: Site, r: Random) -> Plant:
    """What is new is written a row too late, or the row before it is written again."""
    if site.address.kind == "setitem":
        rows = len(site.reads[0].values)
        return Made(site, inputs=lambda v, k: ([v[0], (v[1] + 1) % rows, v[2]], k), openly=r.random_sample() < 0.3)
    axis = site.record.keywords["dim"]

    def inputs(v: list[Any], k: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        count, new = v[0].shape[axis], v[1].shape[axis]
        return [v[0], np.take(v[0], range(count - new, count), axis)], k

    return Made(site, inputs=inputs)


def shifted_labels(site: Site, r: Random) -> Plant:
    return Made(site, inputs=lambda v, k: ([v[0], np.roll(v[1], 1)], k))


def rope_start(setting: Setting, r: Random) -> None:
    setting.options["rope_start"] = 1


def swapped_axes(site: Site, r: Random) -> Plant:
    """Two neighbouring axes of one length, as batch and words are in a square batch; none in a step of another
    length."""
    axis = _square(site)
    return Made(site, outputs=on_output(lambda y: y if axis is None else np.swapaxes(y, axis, axis + 1)))


def _square(site: Site) -> Optional[int]:
    out = site.out
    if out is None:
        return None
    shape = out.values.shape
    return next((k for k in range(len(shape) - 1) if shape[k] == shape[k + 1] > 1), None)


def softmax_axis(site: Site, r: Random) -> Plant:
    def formula(a: Arithmetic, v: list[Any], k: Any, y: list[Array]) -> list[Any]:
        return [np.swapaxes(softmax(a, np.swapaxes(v[0], -1, -2)), -1, -2)]

    return Made(site, formula=formula)


# Of arithmetic


def truncated_sum(site: Site, r: Random) -> Plant:
    """A loop in whole blocks forgets the rest, forward or in a gradient."""
    count = int(r.choice([4, 8, 16]))
    return Made(site, arithmetic=lambda a: a.with_(dropped=count))


def coarse_gradient(site: Site, r: Random) -> Plant:
    kind = str(r.choice(["bfloat16", "bfloat16", "float16"]))
    return Made(site, arithmetic=lambda a: a.with_(accumulator=kind))


def other_eps(site: Site, r: Random) -> Plant:
    """Another number altogether, as of another default."""
    eps, where = float(r.choice([1e-3, 1e-2, 0.1])), NORM_EPS[site.address.kind]
    return Made(site, inputs=lambda v, k: ([*v[:where], eps, *v[where + 1 :]], k), openly=r.random_sample() < 0.5)


def scaled_mask(site: Site, r: Random) -> Plant:
    """A mask constant scaled so far that what is masked shows through; at -1250 for -1e4 a softmax still writes 0."""
    factor = float(10.0 ** r.uniform(0.3, 1.1)) / abs(float(site.record.inputs[2]))  # type: ignore[arg-type]
    return Made(site, inputs=lambda v, k: ([v[0], v[1], v[2] * factor], k), openly=r.random_sample() < 0.4)


# Elsewhere


def another_seed(setting: Setting, r: Random) -> None:
    """Dropouts that draw other numbers: no two such runs agree, whatever says so."""
    setting.options["seed"] = 1


def seed_again(setting: Setting, r: Random) -> None:
    """A layer that is computed again draws other numbers than the first time."""
    setting.options["again_seed"] = 1


def fused_kernel(setting: Setting, r: Random) -> None:
    """Inside a kernel that leaves no record: rows that are lost, a channel, a factor."""
    way, at, factor = r.choice(["rows", "channel", "scale"]), r.random_sample(), 1.0 + size(r, 2.5, 0.6)

    def change(v: Array) -> Array:
        v = v.copy()
        if way == "rows":
            v[..., -max(1, v.shape[-2] // 4) :, :] = 0.0
        elif way == "channel":
            v[..., int(at * v.shape[-1])] *= factor + 0.5
        else:
            v *= factor
        return v

    setting.options["kernel_fault"] = change


def _summing(site: Site) -> bool:
    kinds = (*CONTRACTIONS, *NORMS, "softmax", "mean", "sum")
    return site.out is not None and site.address.kind in kinds


def _grows(site: Site) -> bool:
    if not site.is_forward or site.out is None:
        return False
    if site.address.kind == "setitem":
        return len(site.reads[0].values) > len(site.reads[-1].values)
    dim = site.record.keywords.get("dim")
    two = site.address.kind == "cat" and len(site.reads) == 2 and isinstance(dim, int)
    return two and site.reads[0].values.shape[dim] >= site.reads[1].values.shape[dim]


def _coarse(site: Site) -> bool:
    kinds = (*CONTRACTIONS, *NORMS)
    return site.address.phase == "backward" and site.address.kind in kinds and site.out.dtype == "float32"


def _finite_mask(site: Site) -> bool:
    return of("masked_fill")(site) and np.isfinite(site.record.inputs[2])


def _computed(site: Site) -> bool:
    op = OPERATORS.get(site.address.kind)
    return site.out is not None and op is not None and site.is_forward and not op.copies


def _needs(*features: str) -> Any:
    return lambda options, network: all(options.get(one) for one in features)


SECOND_FAULTS = [
    Fault("kind_gradient", kind_gradient, is_smooth, "sites", weight=2.0),
    Fault("kind_scale", kind_scale, _computed, "sites", held=True),
    Fault("all_weights", all_weights, lambda names: bool(names), "weights"),
    Fault("decay_missing", decay_missing, lambda steps: steps > 1, "optimizer", weight=2.0),
    Fault("step_before", step_before, _computed, "sites", weight=2.0),
    Fault("rank_lost", rank_lost, of("all_reduce"), "sites", weight=3.0),
    Fault("cache_row", cache_row, _grows, weight=2.0),
    Fault("shifted_labels", shifted_labels, of("cross_entropy"), held=True),
    Fault("rope_start", rope_start, lambda options, network: "rope" in network.features, "options"),
    Fault("swapped_axes", swapped_axes, lambda s: _computed(s) and _square(s) is not None),
    Fault("softmax_axis", softmax_axis, lambda s: of("softmax")(s) and s.out.values.shape[-2] > 1, held=True),
    Fault("truncated_sum", truncated_sum, _summing, weight=2.0),
    Fault("coarse_gradient", coarse_gradient, _coarse, weight=1.5),
    Fault("other_eps", other_eps, lambda s: s.is_forward and s.address.kind in NORMS),
    Fault("scaled_mask", scaled_mask, _finite_mask, weight=2.0),
    Fault("another_seed", another_seed, _needs("dropout"), "options", weight=3.0),
    Fault("seed_again", seed_again, _needs("dropout", "checkpoint"), "options", weight=3.0),
    Fault("fused_kernel", fused_kernel, _needs("unrecorded"), "options", weight=3.0),
]  # fmt: skip
