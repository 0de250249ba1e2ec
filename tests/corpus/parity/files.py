"""Write a case as engines and trainers do. A convention writes one side; `both` writes both into one file."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any, Callable

import numpy as np

from tests.corpus.parity.cases import Case
from tests.corpus.parity.engines import Batch

NAMES = {"rollout": "rollout_log_probs", "trainer": "old_log_probs"}
PAD = -1.0  # verl pads the log-probabilities of a rollout with -1


def arrays(case: Case, batch: Batch, side: str, pads: bool = True) -> dict[str, np.ndarray]:
    """The arrays of verl."""
    mask = getattr(batch, f"{side}_mask")
    values = getattr(batch, side)
    if pads and side == "rollout":
        beyond = ~(batch.rollout_mask | batch.trainer_mask)
        values = np.where(beyond, PAD, values)
    found = {NAMES[side]: values.astype(np.float32)}
    if case.masks:
        found["response_mask"] = mask.astype(np.int64)
    if case.ids:
        found["responses"] = np.maximum(getattr(batch, f"{side}_ids"), 0)
    return found


def attention(case: Case, batch: Batch, side: str) -> dict[str, np.ndarray]:
    """The same with an attention mask over prompt and response, padded on the left."""
    found = arrays(case, batch, side)
    if "response_mask" in found:
        width = max(map(len, batch.prompts))
        left = np.array([[0] * (width - len(one)) + [1] * len(one) for one in batch.prompts])
        found["attention_mask"] = np.concatenate([left, found.pop("response_mask")], axis=1)
    return found


def sums(case: Case, batch: Batch, side: str) -> dict[str, np.ndarray]:
    """One number a request: the rollout's sum, the trainer's sum or mean."""
    mask = getattr(batch, f"{side}_mask")
    values = (getattr(batch, side) * mask).sum(axis=1)
    if side == "trainer" and case.sums == "sum_mean":
        values = values / mask.sum(axis=1)
    return {NAMES[side]: values.astype(np.float32), "response_mask": mask.astype(np.int64)}


def rows(batch: Batch, side: str) -> Any:
    """Each request without padding: log-probabilities, mask, ids, prompt, place."""
    for at in range(len(batch.lengths)):
        used = np.flatnonzero(batch.rollout_mask[at] | batch.trainer_mask[at])
        end = int(used[-1]) + 1 if len(used) else 0
        mask = getattr(batch, f"{side}_mask")[at, :end]
        yield at, getattr(batch, side)[at, :end], mask, getattr(batch, f"{side}_ids")[at, :end], batch.prompts[at]


def npy(folder: Path, step: int, case: Case, batch: Batch, side: str) -> None:
    place = folder / f"step_{step}"
    place.mkdir(parents=True)
    for name, array in (sums if case.sums else attention)(case, batch, side).items():
        np.save(place / f"{name}.npy", array)


def npz(folder: Path, step: int, case: Case, batch: Batch, side: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"step_{step}.npz", **(sums if case.sums else arrays)(case, batch, side))


def pt(folder: Path, step: int, case: Case, batch: Batch, side: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath(f"{step}.pt").write_bytes(torch_file((sums if case.sums else arrays)(case, batch, side)))


def jsonl(folder: Path, step: int, case: Case, batch: Batch, side: str) -> None:
    place = folder / f"step_{step}"
    place.mkdir(parents=True)
    found = []
    for at, values, mask, ids, _ in rows(batch, side):
        one: dict[str, Any] = {NAMES[side]: values.tolist(), "index": at}
        if case.masks:
            one["loss_mask"] = mask.astype(int).tolist()
        if case.ids:
            one["token_ids"] = ids.tolist()
        if case.sums:
            one = {"cumulative_logprob": float(values[mask].sum()), "response_length": int(mask.sum())}
            if side == "trainer" and case.sums == "sum_mean":
                one["cumulative_logprob"] /= int(mask.sum())
        found.append(json.dumps(one))
    place.joinpath("records.jsonl").write_text("\n".join(found) + "\n")


def slime(folder: Path, step: int, case: Case, batch: Batch, side: str) -> None:
    """--save-debug-rollout-data, or --save-debug-train-data of two ranks, each with every second request."""
    folder.mkdir(parents=True, exist_ok=True)
    if side == "rollout":
        samples = [
            {
                "index": at, "tokens": [*prompt, *ids.tolist()], "response_length": len(ids), "status": "completed",
                "loss_mask": mask.astype(int).tolist(), "rollout_log_probs": values.tolist(), "reward": 0.5,
            }
            for at, values, mask, ids, prompt in rows(batch, side)
        ]  # fmt: skip
        folder.joinpath(f"{step}.pt").write_bytes(torch_file({"rollout_id": step, "samples": samples}))
        return
    for rank in range(2):
        mine = [one for one in rows(batch, side) if one[0] % 2 == rank]
        data = {
            "tokens": [np.array([*prompt, *ids]) for _, _, _, ids, prompt in mine],
            "log_probs": [values.astype(np.float32) for _, values, _, _, _ in mine],
            "loss_masks": [mask.astype(np.int32) for _, _, mask, _, _ in mine],
            "response_lengths": [len(ids) for _, _, _, ids, _ in mine],
            "sample_indices": [at for at, *_ in mine],
        }
        value = {"rollout_id": step, "rank": rank, "rollout_data": data}
        folder.joinpath(f"{step}_{rank}.pt").write_bytes(torch_file(value))


def sglang(folder: Path, step: int, case: Case, batch: Batch, side: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for _, values, _, ids, _ in rows(batch, side):
        triples = [[float(value), int(token), None] for value, token in zip(values, ids)]
        found.append({"text": "", "meta_info": {"id": "x", "output_token_logprobs": triples}})
    folder.joinpath(f"step_{step}.json").write_text(json.dumps(found))


def vllm(folder: Path, step: int, case: Case, batch: Batch, side: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for at, values, _, ids, _ in rows(batch, side):
        logged: dict[str, Any] = {
            "token_logprobs": values.tolist(), "tokens": [f"token_id:{token}" for token in ids],
        }  # fmt: skip
        if batch.top is not None:
            tokens, logs = (one[at, : len(ids)] for one in batch.top[side])
            logged["top_logprobs"] = [
                {f"token_id:{token}": float(value) for token, value in zip(*pair) if np.isfinite(value)}
                for pair in zip(tokens, logs)
            ]
        found.append(json.dumps({"id": f"cmpl-{at}", "choices": [{"index": 0, "text": "", "logprobs": logged}]}))
    folder.joinpath(f"step_{step}.jsonl").write_text("\n".join(found) + "\n")


def both(folder: Path, case: Case) -> None:
    """Both sides of a step in one file."""
    folder.mkdir(parents=True, exist_ok=True)
    for step, batch in enumerate(case.batches):
        found = {**arrays(case, batch, "trainer"), **arrays(case, batch, "rollout")}
        np.savez(folder / f"step_{step}.npz", **found)


Writer = Callable[[Path, int, Case, Batch, str], None]
ROLLOUT: dict[str, Writer] = {
    "npy": npy, "npz": npz, "pt": pt, "jsonl": jsonl, "slime": slime, "sglang": sglang, "vllm": vllm,
}  # fmt: skip
TRAINER: dict[str, Writer] = {"npy": npy, "npz": npz, "pt": pt, "jsonl": jsonl, "slime": slime, "vllm": vllm}
WITH_MASKS = ("npy", "npz", "pt", "jsonl", "slime")
WITHOUT_IDS = ("npy", "npz", "pt", "jsonl")
WITH_SUMS = ("npy", "npz", "pt", "jsonl")


def conventions(case: Case, rng: np.random.Generator) -> tuple[str, str]:
    """A convention of each side that can record the case."""
    sides = []
    for known in (ROLLOUT, TRAINER):
        fit = [*known]
        if case.kind in ("padding", "mask"):
            fit = [name for name in fit if name in WITH_MASKS]
        if not case.ids:
            fit = [name for name in fit if name in WITHOUT_IDS]
        if case.sums:
            fit = [name for name in fit if name in WITH_SUMS]
        sides.append(str(rng.choice(fit)))
    if "vllm" in sides and case.kind in ("nan",):  # JSON has no infinity, except Python's
        sides = ["npz" if one == "vllm" else one for one in sides]
    return sides[0], sides[1]


def write(folder: Path, case: Case, rollout: str, trainer: str) -> tuple[Path, Path]:
    """Both recordings; their folders."""
    for side, name, known in (("rollout", rollout, ROLLOUT), ("trainer", trainer, TRAINER)):
        for step, batch in enumerate(case.batches):
            known[name](folder / side, step, case, batch, side)
    return folder / "rollout", folder / "trainer"


STORAGES = {"f4": "FloatStorage", "f8": "DoubleStorage", "i8": "LongStorage", "i4": "IntStorage"}


def torch_file(value: Any) -> bytes:
    """A file of torch.save, without torch: dicts, lists, numbers, texts, and arrays as tensors."""
    stored: list[np.ndarray] = []
    body = b"\x80\x02" + _pickled(value, stored) + b"."
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        members = {"data.pkl": body, "byteorder": b"little", "version": b"3\n"}
        members.update({f"data/{key}": np.ascontiguousarray(one).tobytes() for key, one in enumerate(stored)})
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(f"saved/{name}"), data)
    return buffer.getvalue()


def _pickled(value: Any, stored: list[np.ndarray]) -> bytes:
    if isinstance(value, dict):
        items = b"".join(_pickled(one, stored) for pair in value.items() for one in pair)
        return b"}(" + items + b"u"
    if isinstance(value, (list, tuple)):
        return b"](" + b"".join(_pickled(one, stored) for one in value) + b"e"
    if isinstance(value, np.ndarray):
        return _tensor(value, stored)
    if value is None or isinstance(value, (bool, np.bool_)):
        return {None: b"N", True: b"\x88", False: b"\x89"}[None if value is None else bool(value)]
    if isinstance(value, str):
        return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
    if isinstance(value, (int, np.integer)):
        return b"J" + struct.pack("<i", int(value))
    return b"G" + struct.pack(">d", float(value))


def _tensor(array: np.ndarray, stored: list[np.ndarray]) -> bytes:
    kind = STORAGES[f"{array.dtype.kind}{array.dtype.itemsize}"]
    text = [_pickled(one, []) for one in ("storage", str(len(stored)), "cpu")]
    number = b"J" + struct.pack("<i", array.size)
    storage = b"(" + text[0] + f"ctorch\n{kind}\n".encode() + text[1] + text[2] + number + b"tQ"
    stored.append(array)
    shape = b"(" + b"".join(b"J" + struct.pack("<i", one) for one in array.shape) + b"t"
    strides = (
        b"("
        + b"".join(b"J" + struct.pack("<i", one // array.itemsize) for one in np.ascontiguousarray(array).strides)
        + b"t"
    )
    hooks = b"ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + shape + strides + b"\x89" + hooks + b"tR"
