"""Rows of files beside the dumps: versions, environment, hyper-parameters, random calls."""

from __future__ import annotations

import math
import re
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from typing import Any, Mapping, NamedTuple, Optional

from npucmp.comparability.answers import close, differs, same, unknown
from npucmp.comparability.check_item import CheckItem
from npucmp.comparability.run_pair import RunPair
from npucmp.model import first_of
from npucmp.model.item_result import ItemResult

NEEDED = ("transformers", "deepspeed", "megatron", "numpy", "datasets", "peft", "mindspore", "torch")  # msprobe's list
PACKAGES = (*NEEDED, "torch_npu", "mindspeed", "mindspeed_llm", "megatron_core", "accelerate", "tokenizers", "apex",
             "flash_attn", "cann", "driver")  # fmt: skip
OF_ONE_DEVICE = ("torch_npu", "mindspeed", "mindspeed_llm", "cann", "driver", "apex", "flash_attn")


class EnvironmentVariable(NamedTuple):
    """An environment variable that affects results: its names on NPU and GPU, and its default."""

    npu: str
    gpu: str = ""
    default: str = ""


VARIABLES = (  # the list of msprobe's config_check, without its bug that the PCIE entry reads ROCE's variable
    EnvironmentVariable("HCCL_DETERMINISTIC", "NCCL_DETERMINISTIC", "false"),
    EnvironmentVariable("HCCL_ALGO", "NCCL_ALGO"),
    EnvironmentVariable("ASCEND_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING", "0"),
    EnvironmentVariable("HCCL_INTRA_ROCE_ENABLE", default="0"),
    EnvironmentVariable("HCCL_INTRA_PCIE_ENABLE", default="1"),
    EnvironmentVariable("INF_NAN_MODE_ENABLE", default="1"),
    EnvironmentVariable("MS_ASCEND_CHECK_OVERFLOW_MODE"),
    EnvironmentVariable("CLOSE_MATMUL_K_SHIFT", default="0"),
    EnvironmentVariable("PYTHONHASHSEED", "PYTHONHASHSEED"),
)
SAME_WORDS = (  # synonyms: msprobe's table, and names in Megatron, DeepSpeed and HuggingFace
    "learning_rate lr learningrate base_lr",
    "batch_size batch bs batch_size_per_gpu micro_batch_size per_device_train_batch_size train_batch_size",
    "epochs num_epochs max_epochs epoch num_train_epochs",
    "weight_decay wd weightdecay",
    "dropout_rate dropout drop_rate hidden_dropout hidden_dropout_prob",
    "warmup_steps lr_warmup_iters num_warmup_steps warmup_iters",
    "tensor_model_parallel_size tp tensor_parallel_size",
    "pipeline_model_parallel_size pp pipeline_parallel_size",
    "context_parallel_size cp",
    "expert_model_parallel_size ep",
    "num_layers num_hidden_layers n_layer",
    "num_attention_heads n_head num_heads",
    "seq_length sequence_length max_seq_length seq_len",
    "min_lr lr_min",
    "gradient_accumulation_steps accumulate_grad_batches accumulation_steps grad_accum_steps gradient_accumulation",
    "max_steps train_iters total_steps train_steps max_iters num_training_steps total_training_steps",
)
NEUTRAL: Mapping[str, tuple[float, ...]] = {  # last part of a name → values that change nothing, as if it is absent
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "temperature", "top_p", "typical_p",
                     "length_penalty", "num_beams", "gradient_accumulation_steps"), (1.0,)),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_p", "no_repeat_ngram_size", "min_tokens",
                     "min_new_tokens", "epsilon_cutoff", "eta_cutoff", "diversity_penalty", "weight_decay",
                     "dropout_rate", "attention_dropout", "label_smoothing"), (0.0,)),
    "top_k": (0.0, -1.0),
}  # fmt: skip
SYNONYMS = {word: words.split()[0] for words in SAME_WORDS for word in words.split()}
OPTIMIZER = {  # last part of a name → name in the optimizer
    **dict.fromkeys(SAME_WORDS[0].split(), "lr"),
    **dict.fromkeys(SAME_WORDS[3].split(), "weight_decay"),
    **{word: word for word in ("betas", "momentum", "optimizer", "optim")},
    **{f"adam_{word}": word for word in ("beta1", "beta2", "eps")},
    "adam_epsilon": "eps",
    "beta1": "beta1",
    "beta2": "beta2",
}
NO_PARAMETER = ("*dir", "*path", "*port", "*host", "*_name", "*folder", "*log*", "local_rank", "*url", "*token",
                "*_file", "*_files", "*api_key", "*password", "*secret", "save", "load",
                "transformers_version", "_from_model_config", "_commit_hash")  # fmt: skip
OF_DEVICES = re.compile(r"cuda|npu|gpu|nccl|hccl")  # values that name the device or its communication
SIMILAR = 0.8  # similarity from which two names are proposed for confirmation
ROUNDED = 1e-9
LISTED = 8  # settings of one side alone in a line: work
EQUAL = 1e-5  # relative, for sums of two devices


WITHOUT = "give --env with two zips of msprobe's config_check, or text of `pip freeze` and `env`"


def versions(both: RunPair) -> ItemResult:
    """Versions of the libraries that affect numbers; the local part (+cpu) is ignored."""
    packs = both.setups
    if packs is None:
        return unknown(WITHOUT)
    if packs[0].versions is None or packs[1].versions is None:
        return unknown("a file holds no versions: pass the output of `pip freeze`")
    here, there = packs[0].versions, packs[1].versions
    odd, alone, local = list[str](), list[str](), list[str]()
    for name in PACKAGES:
        a, b = here.get(name), there.get(name)
        if a == b:
            continue
        if a is None or b is None:
            alone += [name] if name not in OF_ONE_DEVICE else []
        elif a.partition("+")[0] == b.partition("+")[0]:
            local.append(name)
        else:
            odd.append(f"{name} {a} against {b}")
    known = sum(name in here and name in there for name in PACKAGES)
    if odd:
        needed = any(one.split(" ")[0] in NEEDED for one in odd)
        return differs(first_of(odd, 4), "error" if needed else "warning", places=len(odd), first=odd[0].split(" ")[0])
    if alone:
        return differs(f"only on one side: {first_of(alone, 4)}", "warning", places=len(alone), first=alone[0])
    if not known:
        return unknown(f"the files hold no version of {first_of([*NEEDED], 8)}")
    if local:
        return close(f"{first_of(local, 4)}: only the local part differs", places=known)
    return same(f"{known} libraries", places=known)


def environment(both: RunPair) -> ItemResult:
    """Variables that affect determinism, overflow and algorithms; an unset variable has its default."""
    packs = both.setups
    if packs is None:
        return unknown(WITHOUT)
    if packs[0].environment is None or packs[1].environment is None:
        return unknown("a file holds no environment: pass the output of `env`")
    odd, alone = list[str](), list[str]()
    for one in VARIABLES:
        values = [_variable(one, pack.environment or {}) for pack in packs]
        if None not in values and values[0] != values[1]:
            odd.append(f"{one.npu}: {values[0]} against {values[1]}")
        elif values.count(None) == 1:
            side, value = ("target", values[0]) if values[1] is None else ("golden", values[1])
            if value != one.default:
                alone.append(f"{one.npu} = {value} only in {side}")
    if odd:
        return differs(first_of(odd, 3), "error", places=len(odd), first=odd[0].partition(":")[0])
    if alone:
        return differs(first_of(alone, 3), "warning", places=len(alone), first=alone[0].partition(" ")[0])
    return same(f"{len(VARIABLES)} variables", places=len(VARIABLES))


def _variable(one: EnvironmentVariable, variables: Mapping[str, str]) -> Optional[str]:
    for name in (one.npu, one.gpu):
        if name and variables.get(name, "") != "":
            return {"1": "true", "true": "true", "0": "false", "false": "false"}.get(
                variables[name].lower(), variables[name]
            ) if one.default in ("true", "false") else variables[name]  # fmt: skip
    return None


def hyperparameters(both: RunPair) -> ItemResult:
    """Compare hyper-parameters by name, then by synonym. Similar names are proposed for confirmation and are not
    compared."""
    here, there = parameters_of(both, 0), parameters_of(both, 1)
    if here is None or there is None:
        return unknown("give --config with the configuration of both, or --env with zips that hold it")
    matches = _matching_names(here, there)
    odd = [(name, other, here[name], there[other]) for name, other in matches
           if not equal(here[name], there[other]) and not _is_neutral(name, here[name], there[other])]  # fmt: skip
    alone = [{*here} - {a for a, _ in matches}, {*there} - {b for _, b in matches}]
    sides = [{name: side[name] for name in names if side[name] not in (None, "") and not _is_neutral(name, side[name])}
             for side, names in zip((here, there), alone)]  # fmt: skip
    known = [(name, value) for side in sides for name, value in side.items() if _neutral_values(name)]
    listed = [_alone_words(side, values) for side, values in zip(("target", "golden"), sides) if values]
    if odd:
        words = [f"{name if name == other else f'{name} ({other})'}: {a} against {b}" for name, other, a, b in odd]
        return differs("; ".join([first_of(words, 4), *listed]), places=len(odd) + len(known), first=odd[0][0],
                       target=str(odd[0][2])[:80], golden=str(odd[0][3])[:80])  # fmt: skip
    if known:
        name, _ = known[0]
        words = [*listed, f"without it, {word_of(name)} is {_neutral_values(name)[0]:g}"]
        return differs("; ".join(words), places=len(known), first=name)
    similar = _similar(*map(set, sides))
    if similar:
        words = [f"similar names, please confirm: {first_of(similar, 3)}", *listed]
        return close("; ".join(words), places=len(matches))
    if listed:
        return differs(f"{'; '.join(listed)}: defaults may differ", "warning", places=sum(map(len, sides)))
    return same(f"{len(matches)} hyper-parameters", places=len(matches))


def _neutral_values(name: str) -> tuple[float, ...]:
    return NEUTRAL.get(SYNONYMS.get(word_of(name), word_of(name)), ())


def _is_neutral(name: str, *values: Any) -> bool:
    """Whether a setting with these values, or without one, changes nothing."""
    neutral = _neutral_values(name)
    return bool(neutral) and all(value is None or _figure(value) in neutral for value in values)


def _alone_words(side: str, values: Mapping[str, Any]) -> str:
    """List the settings of one side alone, those whose default is known first."""
    names = sorted(values, key=lambda name: (not _neutral_values(name), name))
    count = f"{len(names)} " if len(names) > 1 else ""
    return f"{count}only in {side}: {first_of([f'{name} = {str(values[name])[:40]}' for name in names], LISTED)}"


def parameters_of(both: RunPair, side: int) -> Optional[dict[str, Any]]:
    """Hyper-parameters of a side, without those that do not affect numbers; None if no file holds any."""
    found: Optional[Mapping[str, Any]] = None
    if both.configs is not None:
        found = both.configs[side]
    elif both.user_input.env is not None:
        found = both.setups[side].parameters if both.setups else None
    if found is None:
        return None
    ignored = (*NO_PARAMETER, *both.user_input.ignored("hyperparameters"))
    return {name: value for name, value in found.items()
            if not any(fnmatchcase(word_of(name), glob) or fnmatchcase(name, glob) for glob in ignored)}  # fmt: skip


def word_of(name: str) -> str:
    """The last part of a dotted name, in lower case with underscores."""
    return name.rpartition(".")[2].lower().replace("-", "_")


def _matching_names(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of names with the same meaning: equal, equal in their last part, or synonyms; each name occurs once."""
    found, left = [(name, name) for name in here if name in there], {name: None for name in there if name not in here}
    for key in (word_of, lambda name: SYNONYMS.get(word_of(name), word_of(name))):
        by_word: dict[str, list[str]] = {}
        for name in left:
            by_word.setdefault(key(name), []).append(name)
        taken = {name for name, _ in found}
        for name in here:
            fitting = by_word.get(key(name), []) if name not in taken else []
            if len(fitting) == 1 and sum(key(one) == key(name) for one in here if one not in taken) == 1:
                found.append((name, fitting[0]))
                left.pop(fitting[0], None)
                by_word[key(name)] = []
    return found


def _similar(here: set[str], there: set[str]) -> list[str]:
    if len(here) * len(there) > 250_000:
        return []
    found = list[tuple[str, str]]()
    for other in there:
        matcher = SequenceMatcher(None, "", word_of(other)[:80])
        for name in here:
            matcher.set_seq1(word_of(name)[:80])
            if matcher.real_quick_ratio() > SIMILAR and matcher.quick_ratio() > SIMILAR and matcher.ratio() > SIMILAR:
                found.append((name, other))
    return [f"{name} and {other}" for name, other in sorted(found)]


def equal(a: Any, b: Any) -> bool:
    """Whether two values are equal. Numbers are compared as numbers in any spelling (1e-4 is 0.0001), paths by their
    last part. npu and cuda are equal, and so are hccl and nccl, because the devices of both runs differ on purpose."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, str) and isinstance(b, str) and a[:1] in ("/", "~") and b[:1] in ("/", "~"):
        return a.rstrip("/").rpartition("/")[2] == b.rstrip("/").rpartition("/")[2]  # folders of two hosts
    x, y = _figure(a), _figure(b)
    if x is not None and y is not None:
        return x == y or math.isclose(x, y, rel_tol=ROUNDED) or (x != x and y != y)
    own, other = (
        OF_DEVICES.sub(lambda found: "ccl" if found[0].endswith("ccl") else "device", str(one).strip().lower())
        for one in (a, b)
    )
    return own == other


def _figure(value: Any) -> Optional[float]:
    if isinstance(value, bool):
        return None
    try:
        return float(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):
        return None


def compare_setups(both: RunPair, what: str) -> ItemResult:
    """Compare the figures of "weights" or "inputs" in the files, if there are no dumps."""
    if both.setups is None:
        return unknown("needs dumps of both, or --env with two zips of msprobe's config_check")
    here, there = (getattr(pack, what) for pack in both.setups)
    if here is None or there is None:
        return unknown(f"the files hold no {what}")
    odd = [name for name in here if name in there and not all(map(_alike, here[name], there[name]))]
    alone = sorted({*here} ^ {*there})
    if odd or alone:
        words = [f"the figures of {len(odd)} of {len(here)} differ ({first_of(odd, 2)})"] if odd else []
        words += [f"{len(alone)} on one side only ({first_of(alone, 2)})"] if alone else []
        return differs("; ".join(words), places=len(odd) + len(alone), first=(odd or alone)[0])
    return same(f"{len(here)} {what} by their figures", places=len(here))


def _alike(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=EQUAL, abs_tol=1e-12) or (a != a and b != b)


def random_calls(both: RunPair) -> ItemResult:
    """The number of calls of random functions, by calling line."""
    packs = both.setups
    if packs is None or packs[0].random is None or packs[1].random is None:
        return unknown("give --env with two zips of msprobe's config_check that hold random calls")
    here, there = packs[0].random, packs[1].random
    odd = [f"{name}: {here.get(name, 0)} against {there.get(name, 0)}" for name in sorted({*here} | {*there})
           if here.get(name, 0) != there.get(name, 0)]  # fmt: skip
    if odd:
        return differs(first_of(odd, 3), places=len(odd), first=odd[0].partition(":")[0])
    return same(f"{sum(here.values())} calls", places=len(here))


ROWS = (
    CheckItem("versions", "error", "versions of libraries", "install the same versions on both sides", versions, False),
    CheckItem("environment", "error", "environment variables", "set the same values on both sides", environment, False),
    CheckItem("hyperparameters", "error", "hyper-parameters", "use the same values on both", hyperparameters, False),
    CheckItem("random.calls", "note", "random calls", "call random functions in the same places", random_calls, False),
)
