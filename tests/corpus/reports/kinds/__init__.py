"""Generators of cases, one module a kind: `draw(random, folder)` writes dumps into a folder and returns the case.

The case is what case.json of a report holds: {"kind": words, "runs": [{"do", "exit", "first", "says", "never"}]}. The
truth is known from how the dumps were computed, never from an answer of npucmp. Every module draws controls too: near
pairs that are clean, or whose true cause is another. Seeds below 1000 are for development, from 1000 on for reporting.
"""

from __future__ import annotations

import json
import zlib
from importlib import import_module
from pathlib import Path

import numpy as np

KINDS: tuple[str, ...] = (
    "autograd_nodes",
    "parameter_gradients",
    "dropped_rows",
    "weights_of_golden_alone",
    "equal_statistics",
    "differing_arguments",
    "rounded_inputs",
    "uncompared_before_first",
    "value_precision",
    "constants_in_type",
    "random_draw",
    "one_sided_rounding",
    "small_values",
    "golden_side",
    "overwritten_memory",
    "index_choices",
    "wrong_region",
    "rerun_patterns",
    "factors",
    "infinite_arguments",
    "overflow_sentences",
    "left_over_names",
    "calls_left_out",
    "training_state",
    "weight_relations",
    "optimizer_updates",
    "spikes",
    "normalisation_roles",
    "opaque_modules",
    "fused_norms",
    "coarse_steps",
    "mixed_precision",
    "additive_masks",
    "random_names",
    "shifted_positions",
    "turned_axes",
    "other_batch",
    "node_names",
    "casts",
    "errors_for_machines",
    "engine_weights",
    "token_records",
    "cache_blocks",
    "decode_chunks",
    "derived_inputs",
    "expert_sets",
    "expert_layouts",
    "precheck_settings",
)


def write_case(kind: str, seed: int, folder: Path) -> None:
    """Write the case of a kind that a seed draws."""
    module = import_module(f"{__name__}.{kind}")
    folder.mkdir(parents=True)
    case = module.draw(np.random.default_rng([zlib.crc32(kind.encode()), seed]), folder)
    (folder / "case.json").write_text(json.dumps(case, indent=1), "utf-8")
