"""Read checkpoints: the parameters of a network by name, of each rank, and the configuration beside them.

    {name}.safetensors, *.safetensors.index.json     huggingface; shards of one index are one rank
    {name}.npz                                       numpy.savez
    {name}.pt .pth .bin                              torch.save of a state dict, alone or below a key of STATES
    mp_rank_{TP}[_{PP}][_{EP}]/{name}.pt             Megatron, MindSpeed; also below iter_{N}/ and release/
    rank{N}/…, consolidated.{N}.pth, {…}-rank-{N}-…  one rank each
    .metadata, __{N}_{M}.distcp                      torch.distributed.checkpoint (readers/distributed_checkpoint.py)

A pickle is read without execution (readers/opaque_pickle.py). If several iterations lie in a folder,
latest_checkpointed_iteration.txt names the one that is read. Optimizer states are not read.
Sources: huggingface/safetensors, huggingface/transformers, NVIDIA/Megatron-LM (checkpointing.py), meta-llama/llama,
vllm (sharded_state_loader.py).
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers import safetensors, stored_zip
from npucmp.dump.readers.folders import folders
from npucmp.dump.readers.inert_pickle import PickledTensor, RefusedPickle, tensors_in
from npucmp.dump.readers.names import natural, place_of
from npucmp.dump.readers.opaque_pickle import OPAQUE_OPCODES, OpaqueObject
from npucmp.dump.readers.safe_open import RegularFile, open_regular
from npucmp.dump.readers.text import json_object, read_text
from npucmp.dump.readers.torch_pt import read_object
from npucmp.errors import DumpError, UsageError
from npucmp.model import Payload, TensorRef, first_of

FAMILIES = ((".safetensors",), (".npz",), (".bin", ".pt", ".pth"), (".distcp",))  # the first that is there is read
CONFIGS = ("config.json", "params.json", "adapter_config.json", "quantize_config.json")
STATES = ("model", "state_dict", "model_state_dict", "module")  # keys of a file of torch.save with the parameters
LATEST = "latest_checkpointed_iteration.txt"
_DEPTH = 6  # folders below the path: iter_N/mp_rank_N is two
_MOST = 20_000  # files that are looked at: work
_DIGITS = 18  # of a number in a configuration
_CONFIG_BYTES = 16 << 20
_ITERATION = re.compile(r"iter_([0-9]{1,12})")
_MODEL_PARALLEL = re.compile(r"mp_rank_([0-9]{1,6})(?:_([0-9]{1,6}))?(?:_([0-9]{1,6}))?")
_RANK = re.compile(r"(?:^|[._-])rank[_-]?([0-9]{1,6})(?=$|[._-])")
_CONSOLIDATED = re.compile(r"consolidated\.([0-9]{1,4})")
_NO_WEIGHTS = re.compile(r"optim|scheduler|rng_state|training_args|trainer_state|scaler", re.IGNORECASE)
_WEIGHTS_TOO = re.compile(r"model_optim_rng|model_rng")
_CHUNK = re.compile(r"model([0-9]{1,3})")

Files = Sequence[tuple[tuple[int, ...], str]]  # the number of the rank, by its axes, and the path


class CheckpointRank(NamedTuple):
    """The tensors of one rank by name. `place` has the numbers in its folder: of one axis, or tensor parallel first.
    `chunks` are the stages of an interleaved pipeline: further tensors of the rank."""

    place: tuple[int, ...]
    tensors: Mapping[str, TensorRef]
    chunks: tuple[Mapping[str, TensorRef], ...] = ()

    @property
    def every(self) -> tuple[Mapping[str, TensorRef], ...]:
        return (self.tensors, *self.chunks)


class CheckpointFiles(NamedTuple):
    """A checkpoint: its ranks in order, and the settings of its network by the names of its files."""

    path: str
    format: str
    ranks: tuple[CheckpointRank, ...]
    config: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def open_checkpoint(path: Union[str, os.PathLike[str]], context: ReadContext = ANYWHERE) -> Optional[CheckpointFiles]:
    """Return the checkpoint at a path; None if its first file holds no tensors by name, or its folders are those of
    several steps. Headers alone are read.

    Raises UsageError if the path holds several iterations and does not name one, or one tensor twice in a rank.
    """
    where = Path(path)
    family, files, found = _files_of(where, context)
    notes = [*found]
    if not files or len({place_of(Path(os.path.relpath(file, where)).parts).step for _, file in files}) > 1:
        return None
    if family == FAMILIES[-1]:
        from npucmp.dump.readers.distributed_checkpoint import distributed_tensors

        tensors: dict[str, TensorRef] = {}
        for name, one in distributed_tensors(os.path.dirname(files[0][1]), context):
            _add(tensors, {name: one}, one.file)
        ranks = [CheckpointRank((0,), tensors)]
        return CheckpointFiles(
            str(path), "distcp", tuple(ranks), _config_beside(where, files, notes, context), tuple(notes)
        )
    read: dict[tuple[int, ...], list[dict[str, TensorRef]]] = defaultdict(list)
    config: dict[str, Any] = {}
    for number, (place, file) in enumerate(files):
        chunks = [*_tensors_of(file, config, context)]
        if not number and not any(ref.slot for chunk in chunks for ref in chunk.values()):
            return None  # single tensors, or no file of this kind
        for at, chunk in enumerate(chunks):
            if at >= len(read[place]):
                read[place].append({})
            _add(read[place][at], chunk, file)
    _add_missing(read, where, files, context)
    ranks = [CheckpointRank(place, chunks[0], tuple(chunks[1:])) for place, chunks in sorted(read.items()) if chunks]
    known = {**config, **_config_beside(where, files, notes, context)}
    return CheckpointFiles(str(path), family[0][1:], tuple(ranks), known, tuple(notes))


def _add(known: dict[str, TensorRef], more: Mapping[str, TensorRef], file: str) -> None:
    again = next((name for name in more if name in known), None)
    if again is not None:
        raise UsageError(f"{file}: a second tensor {again!a:.80} of the same rank (first in {known[again].file}); "
                         "pass one checkpoint of one step")  # fmt: skip
    known.update(more)


def _files_of(where: Path, context: ReadContext) -> tuple[tuple[str, ...], Files, tuple[str, ...]]:
    """Return the family of files, the files in order with their ranks, and notes."""
    if where.is_file():
        family = next((one for one in FAMILIES if where.name.endswith(one)), ())
        return family, [(_place((where.name,)), str(where))] if family else [], ()
    found = [(folder, name) for folder, names in folders(where, _DEPTH) for name in names][:_MOST]
    found, notes = _one_iteration(where, found, context)
    for family in FAMILIES:
        chosen = [(folder, name) for folder, name in found if name.endswith(family) and _holds_weights(name)]
        if chosen:
            placed = [(_place((*Path(folder).relative_to(where).parts, name)), os.path.join(folder, name))
                      for folder, name in chosen]  # fmt: skip
            return family, sorted(placed, key=lambda one: (one[0], natural(one[1]))), notes
    return (), [], notes


def _holds_weights(name: str) -> bool:
    return not _NO_WEIGHTS.search(name) or bool(_WEIGHTS_TOO.search(name))


def _one_iteration(
    where: Path, found: list[tuple[str, str]], context: ReadContext
) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Return the files of one iteration, and a note that names it."""
    by_folder: dict[str, set[str]] = defaultdict(set)
    for folder, _ in found:
        for part in Path(folder).relative_to(where).parts:
            if _ITERATION.fullmatch(part):
                by_folder[part].add(folder)
    if len(by_folder) < 2:
        return found, ()
    text = ""
    if (where / LATEST).is_file():
        text = read_text(where / LATEST, 100, context).strip()
    chosen = next((name for name in by_folder if text.isdigit() and int(name[len("iter_") :]) == int(text)), None)
    if chosen is None:
        raise UsageError(f"{where} holds several iterations ({first_of(sorted(by_folder))}); pass the folder of one")
    others = {folder for name, own in by_folder.items() if name != chosen for folder in own}
    return [one for one in found if one[0] not in others], (f"{chosen}, the latest of {len(by_folder)} iterations",)


def _place(parts: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of a rank in the names of folders and file; (0,) without any."""
    for part in reversed(parts):
        if found := _MODEL_PARALLEL.fullmatch(part):
            return tuple(int(number) for number in found.groups() if number is not None)
        if found := _RANK.search(part) or _CONSOLIDATED.match(part):
            return (int(found[1]),)
    return (0,)


def _tensors_of(file: str, config: dict[str, Any], context: ReadContext) -> Iterator[dict[str, TensorRef]]:
    """Yield the tensors of a file by name, of one chunk after another. A file that cannot be read is one tensor."""
    name = os.path.basename(file)
    try:
        with open_regular(file, context) as opened:
            if file.endswith(".safetensors"):
                yield _refs(safetensors.entries(opened), file, "safetensors")
            elif file.endswith(".npz"):
                yield _refs(stored_zip.entries(opened), file, "npz")
            else:
                for chunk in _state_dicts(opened, config):
                    yield _refs(chunk, file, "torch_pt")
    except DumpError as error:
        yield {name: TensorRef("", "", (), file=file, problem=error.because, label=name)}


def _refs(entries: Mapping[str, Union[Payload, str]], file: str, encoding: str) -> dict[str, TensorRef]:
    return {name: _ref(name, one, file, encoding) for name, one in entries.items()}


def _ref(name: str, found: Union[Payload, str], file: str, encoding: str) -> TensorRef:
    if isinstance(found, str):
        return TensorRef("output:0", "", (), file=file, encoding=encoding, problem=found, label=name)
    return TensorRef("output:0", found.dtype, found.shape, file, encoding, label=name, payload=found)


def _state_dicts(file: RegularFile, config: dict[str, Any]) -> Iterator[dict[str, Union[Payload, str]]]:
    """Yield the parameters in a file of torch.save, of each chunk of the model; none for a single tensor."""
    value, payload_of = read_object(file, OPAQUE_OPCODES)
    if not isinstance(value, dict):
        return
    for settings in (value.get("args"), value.get("config")):
        state = settings.state if isinstance(settings, OpaqueObject) else settings
        if isinstance(state, dict):
            config.update({key: one for key, one in state.items() if isinstance(one, (int, float, str, bool))})
    chunks = [value[name] for name in sorted((key for key in value if _is_chunk(key, value)), key=natural)]
    inner = next((value[key] for key in STATES if isinstance(value.get(key), dict)), value)
    for chunk in chunks or [inner]:
        try:
            found = tensors_in(chunk, file.limits)
        except RefusedPickle as refused:
            raise DumpError(file.path, str(refused)) from None
        yield {name: _payload(one, payload_of) for name, one in found.items() if name}


def _is_chunk(key: object, value: Mapping[Any, Any]) -> bool:
    return isinstance(key, str) and bool(_CHUNK.fullmatch(key)) and isinstance(value[key], dict)


def _payload(one: PickledTensor, payload_of: Callable[[PickledTensor], Payload]) -> Union[Payload, str]:
    try:
        return payload_of(one)
    except (RefusedPickle, DumpError) as error:
        return getattr(error, "because", str(error))


def _add_missing(
    read: dict[tuple[int, ...], list[dict[str, TensorRef]]], where: Path, files: Files, context: ReadContext
) -> None:
    """Add the tensors of an index whose files are missing, as tensors that cannot be read."""
    for folder in sorted({os.path.dirname(file) for _, file in files} if where.is_dir() else ()):
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".index.json"):
                continue
            table = json_object(
                read_text(os.path.join(folder, name), "table_bytes", context), folder, "an index", _DIGITS
            )
            known = table.get("weight_map")
            present = {os.path.basename(file) for _, file in files}
            for tensor, file in known.items() if isinstance(known, dict) else ():
                chunk = read[(0,)][0] if read.get((0,)) else None
                if chunk is not None and tensor not in chunk and str(file) not in present:
                    problem = f"the file {str(file)!a:.80} of the index is missing"
                    chunk[str(tensor)] = TensorRef("output:0", "", (), problem=problem, label=str(tensor))


def _config_beside(where: Path, files: Files, notes: list[str], context: ReadContext) -> dict[str, Any]:
    """Return the settings in the configuration files beside the tensors, those of a language model on top. A file that
    cannot be read adds a note."""
    found: dict[str, Any] = {}
    places = [where if where.is_dir() else where.parent, *sorted({Path(file).parent for _, file in files})]
    for path in (folder / name for folder in dict.fromkeys(places) for name in CONFIGS):
        if not path.is_file():
            continue
        try:
            one = json_object(read_text(path, _CONFIG_BYTES, context), path, "a configuration", _DIGITS)
        except DumpError as error:
            notes.append(f"{path}: ignored, {error.because}")
            continue
        inner = one.get("text_config")
        found.update({**one, **(inner if isinstance(inner, dict) else {})})
    return found
