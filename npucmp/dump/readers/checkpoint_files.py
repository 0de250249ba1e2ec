"""Read checkpoints: the parameters of a network by name, of each rank, and the configuration beside them.

    {name}.safetensors, *.safetensors.index.json     huggingface; shards of one index are one rank
    {name}.npz                                       numpy.savez
    {name}.pt .pth .bin                              torch.save of a state dict, alone or below a key of STATES
    mp_rank_{TP}[_{PP}][_{EP}]/{name}.pt             Megatron, MindSpeed; also below iter_{N}/ and release/
    rank{N}/…, consolidated.{N}.pth, {…}-rank-{N}-…  one rank each
    .metadata, __{N}_{M}.distcp                      torch.distributed.checkpoint (readers/distributed_checkpoint.py)

A pickle is read without execution (readers/opaque_pickle.py). If several iterations lie in a folder,
latest_checkpointed_iteration.txt names the one that is read. If an index lies beside files, those that it names are
read, and each tensor that it names has to be in them. The state of a training beside the parameters is read apart
(readers/training_state.py); other keys and files add a note.
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
from npucmp.dump.readers.text import json_object, json_value, read_text
from npucmp.dump.readers.torch_pt import read_object
from npucmp.dump.readers.training_state import TrainingState, is_state, is_state_file, no_state, state_of
from npucmp.errors import DumpError, UsageError
from npucmp.model import Payload, TensorRef, first_of

FAMILIES = ((".distcp",), (".safetensors",), (".npz",), (".bin", ".pt", ".pth"))  # the first that is there is read
CONFIGS = ("config.json", "params.json", "adapter_config.json", "quantize_config.json")
EXPERT_MAP = "physical_to_logical_map"  # the setting that holds the content of a file with a map of experts
STATES = ("model", "state_dict", "model_state_dict", "module")  # keys of a file of torch.save with the parameters
SETTINGS = ("args", "config")  # keys of a file of torch.save with the settings of the network
LATEST = "latest_checkpointed_iteration.txt"
_DEPTH = 6  # folders below the path: iter_N/mp_rank_N is two
_MOST = 20_000  # files of a checkpoint: work
_ADAPTER = "adapter_model."  # definition: the name of PEFT's file, which no index names
_DIGITS = 18  # of a number in a configuration
_CONFIG_BYTES = 16 << 20
_ITERATION = re.compile(r"iter_([0-9]{1,12})")
_MODEL_PARALLEL = re.compile(r"mp_rank_([0-9]{1,6})(?:_([0-9]{1,6}))?(?:_([0-9]{1,6}))?")
_RANK = re.compile(r"(?:^|[._-])rank[_-]?([0-9]{1,6})(?=$|[._-])")
_CONSOLIDATED = re.compile(r"consolidated\.([0-9]{1,4})")
_NO_WEIGHTS = re.compile(
    r"(?:^|[._-])optim(?:izer)?s?(?![a-z])|scheduler|rng_state|training_args|trainer_state|scaler", re.IGNORECASE
)
_WEIGHTS_TOO = re.compile(r"model_optim_rng|model_rng")
_MAP = re.compile(r"(?:expert[_-]?(?:map|location)|physical_to_logical|phy2log|eplb)[\w.-]*\.json", re.IGNORECASE)
_CHUNK = re.compile(r"model([0-9]{1,3})")

_ANY = tuple(ending for family in FAMILIES for ending in family)

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
    state: TrainingState = no_state()


def open_checkpoint(path: Union[str, os.PathLike[str]], context: ReadContext = ANYWHERE) -> Optional[CheckpointFiles]:
    """Return the checkpoint at a path; None if its first file holds no tensors by name, or its folders are those of
    several steps. Headers alone are read.

    Raises UsageError if the path holds several iterations and does not name one, or one tensor twice in a rank;
    DumpError for an index without its files.
    """
    where = Path(path)
    family, files, found = _files_of(where, context)
    notes = [*found]
    if not files or len({place_of(Path(os.path.relpath(file, where)).parts).step for _, file in files}) > 1:
        return None
    if family == FAMILIES[0]:
        from npucmp.dump.readers.distributed_checkpoint import distributed_tensors

        folder, *others = dict.fromkeys(os.path.dirname(file) for _, file in files)
        if others:
            raise UsageError(f"{where} holds several checkpoints ({first_of([folder, *others])}); pass one of them")
        tensors: dict[str, TensorRef] = {}
        for name, ref in distributed_tensors(folder, context):
            _add(tensors, {name: ref}, ref.file)
        ranks = [CheckpointRank((0,), tensors)]
        return CheckpointFiles(
            str(path), "distcp", tuple(ranks), _config_beside(where, files, notes, context), tuple(notes)
        )
    indexes = _indexes(where, family, files, context)
    files = _indexed(files, indexes, notes)
    if not files:
        raise DumpError(str(where), "holds no file that its index names; is the checkpoint complete?")
    read: dict[tuple[int, ...], list[dict[str, TensorRef]]] = defaultdict(list)
    config: dict[str, Any] = {}
    states: dict[tuple[int, ...], TrainingState] = defaultdict(no_state)
    for number, (place, file) in enumerate(files):
        chunks = [*_tensors_of(file, config, notes, context, states[place])]
        if not number and not any(
            ref.slot and not name.startswith(os.path.basename(file)) for one in chunks for name, ref in one.items()
        ):
            return None  # single tensors, or no file of this kind
        if len(files) > _MOST:
            raise DumpError(str(where), f"a checkpoint of {len(files):,} files; at most {_MOST:,} are read")
        for at, chunk in enumerate(chunks):
            if at >= len(read[place]):
                read[place].append({})
            _add(read[place][at], chunk, file)
    _add_missing(read, files, indexes)
    ranks = [CheckpointRank(place, chunks[0], tuple(chunks[1:])) for place, chunks in sorted(read.items()) if chunks]
    known = {**config, **_config_beside(where, files, notes, context)}
    _add_state_files(where, files, states, notes, context)
    state = no_state()
    for place, own in states.items():
        state.add(own, f"rank{'_'.join(map(str, place))}." if len(ranks) > 1 else "")
    return CheckpointFiles(str(path), family[0][1:], tuple(ranks), known, tuple(dict.fromkeys(notes)), state)


def _add_state_files(
    where: Path, files: Files, states: dict[tuple[int, ...], TrainingState], notes: list[str], context: ReadContext
) -> None:
    """Add the states in files beside those of the parameters; a file that cannot be read adds a note."""
    folders_of = {os.path.dirname(file): place for place, file in reversed(files)} if where.is_dir() else {}
    for folder, place in folders_of.items():
        for name in filter(is_state_file, sorted(os.listdir(folder))):
            try:
                with open_regular(os.path.join(folder, name), context) as opened:
                    value, payload_of = read_object(opened, OPAQUE_OPCODES)
                    items = {os.path.splitext(name)[0]: value}
                    states[place].add(state_of(items, opened.path, opened.limits, payload_of))
            except (DumpError, RefusedPickle) as error:
                notes.append(f"{name}: not read: {getattr(error, 'because', str(error))}")


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
    found = [(folder, name) for folder, names in folders(where, _DEPTH) for name in names]
    found, notes = _one_iteration(where, found, context)
    weights = [one for one in found if one[1].endswith(_ANY) and _holds_weights(*one, where)]
    base = [one for one in weights if not one[1].startswith(_ADAPTER)] or weights
    for family in FAMILIES:
        if any(name.endswith(family) for _, name in base):
            chosen = [one for one in weights if one[1].endswith(family) or one not in base]
            others = [one[1] for one in weights if one not in chosen]
            if others:
                notes = (*notes, f"files of other formats are not read: {first_of(others, 2)}")
            placed = [(_place((*Path(folder).relative_to(where).parts, name)), os.path.join(folder, name))
                      for folder, name in chosen]  # fmt: skip
            return family, sorted(placed, key=lambda one: (one[0], natural(one[1]))), notes
    return (), [], notes


def _holds_weights(folder: str, name: str, where: Path) -> bool:
    """Return whether a file may hold parameters by its name; the files of a distributed checkpoint are named by their
    folder."""
    name = Path(folder).relative_to(where).name if name.endswith(FAMILIES[0]) else name
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


def _tensors_of(
    file: str, config: dict[str, Any], notes: list[str], context: ReadContext, state: TrainingState
) -> Iterator[dict[str, TensorRef]]:
    """Yield the tensors of a file by name, of one chunk after another, and add its state. A file that cannot be read is
    one tensor."""
    name = os.path.basename(file)
    try:
        with open_regular(file, context) as opened:
            if file.endswith(".safetensors"):
                yield _refs(safetensors.entries(opened), file, "safetensors")
            elif file.endswith(".npz"):
                yield _refs(stored_zip.entries(opened), file, "npz")
            else:
                for chunk in _state_dicts(opened, config, notes, state):
                    yield _refs(chunk, file, "torch_pt")
    except DumpError as error:
        yield {name: TensorRef("", "", (), file=file, problem=error.because, label=name)}


def _refs(entries: Mapping[str, Union[Payload, str]], file: str, encoding: str) -> dict[str, TensorRef]:
    return {name: _ref(name, one, file, encoding) for name, one in entries.items()}


def _ref(name: str, found: Union[Payload, str], file: str, encoding: str) -> TensorRef:
    if isinstance(found, str):
        return TensorRef("output:0", "", (), file=file, encoding=encoding, problem=found, label=name)
    return TensorRef("output:0", found.dtype, found.shape, file, encoding, label=name, payload=found)


def _state_dicts(
    file: RegularFile, config: dict[str, Any], notes: list[str], state: TrainingState
) -> Iterator[dict[str, Union[Payload, str]]]:
    """Yield the parameters in a file of torch.save, of each chunk of the model; a file that names none has its own name
    for its tensors. Keys beside the parameters that hold the state of a training are added to `state`; the settings of
    the network are read, and each other key adds a note."""
    value, payload_of = read_object(file, OPAQUE_OPCODES)
    own = os.path.basename(file.path)
    if not isinstance(value, dict):
        value = {own: value}
    for settings in map(value.get, SETTINGS):
        known = settings.state if isinstance(settings, OpaqueObject) else settings
        if isinstance(known, dict):
            config.update({key: one for key, one in known.items() if isinstance(one, (int, float, str, bool))})
    keys: Sequence[Any] = sorted((key for key in value if _is_chunk(key, value)), key=natural)
    keys = keys or [key for key in STATES if isinstance(value.get(key), dict)][:1]
    try:
        for chunk in [value[key] for key in keys] or [value]:
            found = tensors_in(chunk, file.limits)
            yield {name or own: _payload(one, payload_of) for name, one in found.items()}
        beside = {key: own for key, own in value.items() if keys and key not in keys}
        held = {key: own for key, own in beside.items() if is_state(key, own)}
        state.add(state_of(held, file.path, file.limits, payload_of))
    except RefusedPickle as refused:
        raise DumpError(file.path, str(refused)) from None
    unread = [str(key) for key in beside if key not in held and key not in SETTINGS]
    if unread:
        notes.append(f"{own}: not read beside {keys[0]!a:.40}: {first_of(unread, 12)}")


def _is_chunk(key: object, value: Mapping[Any, Any]) -> bool:
    return isinstance(key, str) and bool(_CHUNK.fullmatch(key)) and isinstance(value[key], dict)


def _payload(one: PickledTensor, payload_of: Callable[[PickledTensor], Payload]) -> Union[Payload, str]:
    try:
        return payload_of(one)
    except (RefusedPickle, DumpError) as error:
        return getattr(error, "because", str(error))


def _indexes(where: Path, family: tuple[str, ...], files: Files, context: ReadContext) -> dict[str, dict[str, str]]:
    """Return the file of each tensor by the indexes in the folders of files."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for folder in sorted({os.path.dirname(file) for _, file in files} if where.is_dir() else ()):
        for name in sorted(os.listdir(folder)):
            if name.endswith(tuple(f"{ending}.index.json" for ending in family)):
                text = read_text(os.path.join(folder, name), "table_bytes", context)
                known = json_object(text, folder, "an index", _DIGITS).get("weight_map")
                found[folder].update((str(a), str(b)) for a, b in (known.items() if isinstance(known, dict) else ()))
    return found


def _indexed(files: Files, indexes: Mapping[str, Mapping[str, str]], notes: list[str]) -> Files:
    """Return the files without those beside an index that it does not name, which add a note."""
    named = {os.path.join(folder, file) for folder, index in indexes.items() for file in index.values()}
    beside = [
        file
        for _, file in files
        if indexes.get(os.path.dirname(file)) and file not in named and not os.path.basename(file).startswith(_ADAPTER)
    ]
    if beside:
        notes.append(f"files that no index names are not read: {first_of(beside, 2)}")
    return [one for one in files if one[1] not in beside]


def _add_missing(
    read: dict[tuple[int, ...], list[dict[str, TensorRef]]], files: Files, indexes: Mapping[str, Mapping[str, str]]
) -> None:
    """Add the tensors of an index that the files of its folder do not hold, as tensors that cannot be read."""
    for folder, index in indexes.items():
        places = sorted({place for place, file in files if os.path.dirname(file) == folder})
        held = [chunk for place in places for chunk in read[place]]
        present = {os.path.basename(file) for _, file in files if os.path.dirname(file) == folder}
        for tensor, file in index.items():
            if held and not any(tensor in chunk for chunk in held):
                broken = next((chunk[file].problem for chunk in held if file in chunk), "")
                problem = (
                    broken or f"the file {file!a:.80} of the index {'lacks it' if file in present else 'is missing'}"
                )
                held[0][tensor] = TensorRef("output:0", "", (), problem=problem, label=tensor)


def _config_beside(where: Path, files: Files, notes: list[str], context: ReadContext) -> dict[str, Any]:
    """Return the settings in the configuration files beside the tensors, those of a language model on top. A file that
    cannot be read adds a note."""
    found: dict[str, Any] = {}
    places = [where if where.is_dir() else where.parent, *sorted({Path(file).parent for _, file in files})]
    for folder in dict.fromkeys(places):
        maps = (name for name in sorted(os.listdir(folder)) if _MAP.search(name))
        for path in (folder / name for name in (*CONFIGS, *maps)):
            if not path.is_file():
                continue
            try:
                text = read_text(path, _CONFIG_BYTES, context)
                if path.name not in CONFIGS:
                    found[EXPERT_MAP] = json_value(text, path, _DIGITS)
                    continue
                one = json_object(text, path, "a configuration", _DIGITS)
            except DumpError as error:
                notes.append(f"{path}: ignored, {error.because}")
                continue
            inner = one.get("text_config")
            found.update({**one, **(inner if isinstance(inner, dict) else {})})
    return found
