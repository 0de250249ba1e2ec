"""The tools whose dumps npucmp reads: the file tree of each, where step and rank come from, and which path to give.

The table serves only `npucmp formats`; docs/formats.md has a section for each producer. Format recognition does not use
it.
"""

from __future__ import annotations

from typing import NamedTuple


class Tree(NamedTuple):
    """One layout. `files` are lines of paths, `numbers` is the source of step and rank, `give` the paths that a user
    gives."""

    format: str
    what: str
    files: tuple[str, ...]
    numbers: str
    give: str


class Producer(NamedTuple):
    """A tool or library and all that it dumps."""

    name: str
    trees: tuple[Tree, ...]


_FOLDERS = "folders step{N} and rank{M}, in any spelling"
SPELLINGS = (  # of folders; readers/names.py
    "step     step{N}  step_{N}  token_{N}  {npu | cuda}{D}_{pid}/{N}",
    "rank     rank{M}  rank_{M}  worldsize{W}_global_rank{M}  {npu | cuda}{M}_{pid}",
    "neither  pid{P}  pid_{P}  proc{P}  rank: a process; several processes of one step are refused, with their names",
    "         micro_batch_{K}  micro_step{K}  microbatch{K}: a part of its step, a prefix of operator names",
)
_ANY = "the root, any folder of it, or one file"

PRODUCERS = (
    Producer(
        "msprobe (mindstudio-probe, mstt)",
        (
            Tree(
                "msprobe",
                "PrecisionDebugger: modules and APIs; tensors, statistics, checksums, nan_check",
                (
                    "{root}/step{N}/{rank{M} | proc{P} | pid{P}}/dump.json, stack.json, construct.json",
                    "{root}/step{N}/…/dump_tensor_data/{record}.{input | output}.{n}.{pt | npy}",
                    "{root}/step{N}/…/debug.json                 PrecisionDebugger.save",
                ),
                _FOLDERS,
                "the root, a step, a rank, or one dump.json",
            ),
            Tree(
                "monitor",
                "training monitor: statistics of parameters, gradients, activations",
                ("{root}/{time}-rank{M}-{id}/{kind}_{first}-{last}.csv",),
                "step: a column; rank: the folder",
                "the root, a rank, or one table",
            ),
            Tree(
                "saved",
                "save, save_grad and SingleSave of MindSpore's static graphs",
                (
                    "{root}/step{N}/rank{M}/{name}[_grad]_{dtype}_{n}.npy",
                    "{root}/data/{tag}/step{N}/rank{M}[/micro_step{K}]/{tag}[.{i}].npy",
                ),
                "folders: step{N}, rank{M}",
                _ANY,
            ),
            Tree(
                "pt",
                "AclGraphDumper (graph mode of vLLM-Ascend), acl_save",
                (
                    "{root}/step{N}/{rank{M} | pid{P}}/dump_tensor_data/{name}.{call}.{input | output}[.{path}].pt",
                    "{given}_{n}.pt",
                ),
                _FOLDERS,
                _ANY,
            ),
            Tree(
                "mindspore",
                "level L2, kernels of MindSpore and PyTorch (adump)",
                (
                    "{root}/rank_{M}/{time}/step_{N}/{type}.{name}.{task}.{stream}.{time}.{input | output}.{n}.….npy",
                    "{the same}.{format}.{DTYPE}                 bytes without a header, UNVERIFIED",
                ),
                "folders: step_{N}, rank_{M}",
                _ANY,
            ),
        ),
    ),
    Producer(
        "CANN: GE, ACL applications, adapters of TensorFlow and PyTorch",
        (
            Tree(
                "cann",
                "raw dumps of a device, a file per executed operator; statistics; nano dumps; overflow records",
                (
                    "{root}/{time}/{device}/{model}/{model id}/{step}/{type}.{name}.{task}.{stream}.{time}[.csv]",
                    "{root}/ge_proto_*.txt, {om}.json, dynamo_*.txt      graphs, found next to the dump",
                ),
                "folders: {device} is the rank, {step}; or step_{N}, rank_{M}",
                _ANY,
            ),
        ),
    ),
    Producer(
        "MindSpore",
        (
            Tree(
                "mindspore",
                "dumps of kernels: O0, O1, CPU, GPU, and O2 converted; statistic.csv",
                (
                    "{root}/rank_{M}/{net}/{graph}/{iteration}/{type}.{name}.{task}.{stream}.{time}.{input | output}.…",
                    "{root}/rank_{M}/{net}/{graph}/{iteration}/statistic.csv",
                    "{root}/{step}/{time}/{device}/{model}/{model id}/{iteration}/…",
                ),
                "folders: rank_{M} or {device}; {iteration}, step_{N}",
                _ANY,
            ),
        ),
    ),
    Producer(
        "TorchAir",
        (
            Tree(
                "fx",
                "the FX graph, run eagerly: the reference of what GE compiled",
                (
                    "{root}/worldsize{W}_global_rank{M}/{graph}/{step}/{node}-{aten}.{INPUT | OUTPUT}.{n}.{time}.npy",
                    "{root}/data_dump/{step + 1}/gm_{time}_dump/…",
                ),
                "folders: {step}, worldsize{W}_global_rank{M}",
                _ANY,
            ),
        ),
    ),
    Producer(
        "ATB, MindIE and msit",
        (
            Tree(
                "atb",
                "layers, operations and kernels of ATB, by msprobe (atb_dump_data) and msit (msit_dump)",
                (
                    "{root}/{data | tensors}/{device}_{pid}/{execution}/{id}_{name}/{before/in | after/out}tensor….bin",
                    "{root}/{data | tensors}/{device}_{pid}/{execution}/statistic.csv",
                ),
                "folders: {execution} is the step, rank{M} or else {device} the rank",
                _ANY,
            ),
            Tree(
                "pt",
                "torch hook of msit and MindIE: a folder per module and token",
                (
                    "{root}/torch_tensors/{npu | cuda}{D}_{pid}/{token}/root.{module}/{input | output}[_{i}].pth",
                    "{root}/torch_tensors/{npu | cuda}{D}_{pid}/weights/root.{parameter}.pth",
                ),
                "folders: {token} is the step, {D} the rank",
                _ANY,
            ),
            Tree(
                "npy",
                "references of ONNX and Caffe models (msit, msquickcmp)",
                ("{op}.{output}.{time}.npy, input_{op}.{n}.{time}.npy",),
                _FOLDERS,
                "the folder of the files, or one of step and rank folders",
            ),
        ),
    ),
    Producer(
        "vLLM-Ascend, SGLang, verl, slime",
        (
            Tree(
                "pt",
                "SGLang's dumper",
                ("{root}/…/name={name}___step={N}___rank={M}___dump_index={n}[___k=v…].pt",),
                "names: step or forward_pass_id, rank",
                _ANY,
            ),
            Tree(
                "pt",
                "tensors of inference and training by step, rank and micro batch",
                (
                    "{root}/{pid}/step_{N}/rank_{M}/[micro_batch_{K}/]{name}[.{input | output}.{n}].{pt | pth}",
                    "{root}/{pid}/step_{N}/rank_{M}/dump.json      of msprobe: as above",
                ),
                _FOLDERS,
                _ANY,
            ),
        ),
    ),
    Producer(
        "TensorFlow",
        (
            Tree(
                "tfdbg",
                "folders of the debugger, which contain the graph",
                ("{root}/run_{…}/_tfdbg_device_{…}/{scope}/{node}_{output}_DebugIdentity_{time}",),
                "each run is a step",
                "the root, a run, or a device",
            ),
            Tree(
                "npy",
                "the same, unpacked by precision_tool; graph.pbtxt or graph.pb in the folder is read",
                ("{op}.{output}.{time}.npy",),
                _FOLDERS,
                "the folder of the files",
            ),
        ),
    ),
    Producer(
        "PyTorch 1.5 for Ascend",
        (
            Tree(
                "hdf5",
                "dumper of the fused adapter, and plain HDF5 files",
                ("{file}.h5: /{op}/{number}/{input | output}/…",),
                "names (gpu_rank3.h5), else folders step{N} and rank{M}, in any spelling",
                "the root, any folder of it, or one file",
            ),
        ),
    ),
    Producer(
        "your own script",
        (
            Tree(
                "npy", "numpy.save", ("{op}.{input | output}.{n}.npy, {name}.npy",), _FOLDERS, "the folder, or one file"
            ),
            Tree("pt", "torch.save", ("{op}.{input | output}.{n}.pt, {name}.pt",), _FOLDERS, _ANY),
            Tree("safetensors", "safetensors", ("{name}.safetensors",), _FOLDERS, _ANY),
            Tree("npz", "numpy.savez", ("{name}.npz",), _FOLDERS, _ANY),
        ),
    ),
)


def formats() -> tuple[Producer, ...]:
    """Return the tools whose dumps npucmp reads: for each its file trees, the source of step and rank, and the paths to
    give.

    [tree.format for producer in npucmp.formats() for tree in producer.trees]
    """
    return PRODUCERS


def format_lines(producer: Producer) -> list[str]:
    """Return the trees of a producer as lines of text."""
    lines: list[str] = []
    for tree in producer.trees:
        lines += [f"{tree.format:11}  {tree.what}", *(f"{'':13}{file}" for file in tree.files)]
        lines += [f"{'':13}step and rank   {tree.numbers}", f"{'':13}path            {tree.give}"]
    return lines
