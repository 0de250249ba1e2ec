"""Write one record as a folder that runs without npucmp: run.py, call.json, and tensors as .npy.

No text of a dump becomes code: run.py is the text below with one line of npucmp's own table in it. call.json has names,
arguments and types, which run.py reads as data.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import numpy as np

from npucmp.model.dtypes import lookup
from npucmp.recompute.arguments import Arguments
from npucmp.recompute.error_budget import round_to
from npucmp.recompute.table import CallRow

CALL, RUN = "call.json", "run.py"
NOT_KEPT = "no redacted case has its verdict"
NATIVE = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 "
                   "complex128".split())  # fmt: skip


class CaseTensor(NamedTuple):
    """An argument that is a tensor: the name of its file without the ending."""

    name: str


class Type(NamedTuple):
    """An argument that is an element type."""

    name: str


def encode_argument(tree: Any) -> Any:
    """Return an argument as JSON. A value without a JSON form is an object with one key, which run.py recognises."""
    if isinstance(tree, CaseTensor):
        return {"tensor": tree.name}
    if isinstance(tree, Type):
        return {"dtype": tree.name}
    if isinstance(tree, slice):
        return {"slice": [tree.start, tree.stop, tree.step]}
    if tree is ...:
        return {"ellipsis": None}
    if isinstance(tree, float) and not math.isfinite(tree):
        return {"float": repr(tree)}
    return [encode_argument(one) for one in tree] if isinstance(tree, (list, tuple)) else tree


def as_npy(array: Any, dtype: str) -> Any:
    """Return an array as .npy holds it: in its own type, or in float32 where .npy has no such type."""
    if dtype in NATIVE and array.dtype.kind != "f":
        return array.astype(dtype)
    row = lookup(dtype)
    if row is None or row.kind != "f":
        return array
    return round_to(array.astype(np.float64), row).astype(dtype if dtype in NATIVE else np.float32)


def unit_of(name: str) -> float:
    """Return the unit round-off of a float type, 0 for another type."""
    dtype = lookup(name)
    return dtype.round_off if dtype is not None and dtype.kind == "f" else 0.0


def files(row: CallRow, arguments: Arguments, is_backward: bool, facts: dict[str, Any]) -> dict[str, str]:
    """Return run.py and call.json; `facts` are further keys of call.json."""
    call = {
        **facts,
        "args": encode_argument(arguments.args),
        "kwargs": {key: encode_argument(one) for key, one in arguments.kwargs.items()},
    }
    name = row.call
    line = f"torch.{name}"
    if row.kind == "npu":
        line = f'torch_npu.{name} if torch_npu else sys.exit("{name} requires torch_npu, which is not installed")'
    return {CALL: json.dumps(call, indent=1) + "\n", RUN: _HEAD + f"function = {line}\n" + _GRADIENTS[is_backward]}


_HEAD = '''"""Compare one call, as dumped and as computed here, with its float64 result: python run.py

call.json is data: arguments, types, and the files of tensors. Types that .npy lacks (bfloat16) are stored as float32.
The figures of the dump need numpy alone, the call itself needs torch.
"""
import json
import sys
from pathlib import Path

import numpy as np

try:
    import torch
except ImportError:
    torch = None
try:
    import torch_npu
except ImportError:
    torch_npu = None
HERE, DEVICE = Path(__file__).resolve().parent, "npu" if torch_npu else "cpu"
CASE = json.loads((HERE / "call.json").read_text(encoding="utf-8"))


def array(name):
    return np.load(HERE / f"{name}.npy")


EXACT = {}  # results in float64 that are not in the files


def print_error(source, one, got):
    want = (array(one["expected"]) if one["expected"] else EXACT[one["slot"]]).astype(float)
    with np.errstate(all="ignore"):
        error = np.abs(np.reshape(got, want.shape).astype(float) - want)
    use = np.isfinite(error)
    away, size = (np.append(some[use], 0.0 if not use.any() else []) for some in (error, np.abs(want)))
    rel_l2, relative = np.linalg.norm(away) / (np.linalg.norm(size) or 1), away / (size + 1e-7)
    units = f" = {rel_l2 / one['unit']:.3g} u" if one["unit"] else ""
    worst = [int(at) for at in np.unravel_index(np.where(use, error, -1).argmax(), want.shape)]
    print(f"{source:<9} {one['slot']!a}  rel_l2 {rel_l2:.2e}{units}  MERE {relative.mean():.2e}  "
          f"MARE {relative.max():.2e}  RMSE {np.sqrt(np.mean(away**2)):.2e}  worst {worst}"
          f"  not finite {int((~use).sum())}")


def value(x):
    if isinstance(x, dict):
        ((kind, what),) = x.items()
        return {"tensor": lambda: T[what].clone(), "dtype": lambda: TYPES[what], "slice": lambda: slice(*what),
                "float": lambda: float(what), "ellipsis": lambda: ...}[kind]()
    return tuple(map(value, x)) if isinstance(x, list) else x


for one in CASE["outputs"]:
    if one["expected"]:
        print_error("the dump", one, array(one["actual"]))
if torch is None:
    sys.exit("torch is not installed here: the call did not run on this machine")
TYPES = {str(one).split(".")[-1]: one for one in vars(torch).values() if isinstance(one, torch.dtype)}
'''
_CALL = """

def call(device, wide):
    global T
    types = {name: "float64" if wide and TYPES[dtype].is_floating_point else dtype
             for name, dtype in CASE["tensors"].items()}
    T = {name: torch.from_numpy(array(name)).to(device, TYPES[dtype]) for name, dtype in types.items()}
    leaves = [T[name].requires_grad_() for name in CASE["leaves"]]
    args, kwargs = value(CASE["args"]), {key: value(x) for key, x in CASE["kwargs"].items()}
    found = function(*args, **kwargs)
    results = torch.utils._pytree.tree_flatten(args[0] if found is None else found)[0]
"""
_BACK = """    for at, name in CASE["saved"]:  # the backward reads the recorded results of the forward
        results[at].data.copy_(T[name])
    pairs = [(results[at], T[name]) for at, name in CASE["given"]]
    found = []
    pairs[0][0].grad_fn.register_hook(lambda inputs, _: found.extend(inputs))
    found += torch.autograd.grad([y for y, _ in pairs], leaves, [g.to(y.dtype).reshape(y.shape) for y, g in pairs],
                                 allow_unused=True)
    results = found
"""
_REPORT = """    return results


def numbers(result):
    return result.detach().cpu().to(torch.float64).numpy()


if not all(one["expected"] for one in CASE["outputs"]):  # npucmp had no torch: the float64 results are made here
    exact = call("cpu", True)
    for one in CASE["outputs"]:
        dumped = array(one["actual"])
        fitting = {at - len(exact): numbers(x) for at, x in enumerate(exact)
                   if x is not None and x.numel() == dumped.size}
        away = {at: np.linalg.norm(np.nan_to_num(x.ravel() - dumped.ravel())) for at, x in fitting.items()}
        one["at"] = min(away, key=away.get)
        EXACT[one["slot"]] = fitting[one["at"]].reshape(dumped.shape)
        print_error("the dump", one, dumped)
results = call(DEVICE, False)
for one in CASE["outputs"]:
    got = numbers(results[one["at"]])
    print_error(f"this {DEVICE}", one, np.swapaxes(got, -1, -2) if one["turned"] else got)
"""
_GRADIENTS = {False: _CALL + _REPORT, True: _CALL + _BACK + _REPORT}
