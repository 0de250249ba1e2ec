"""Text logs: names followed by numbers, in the formats of several frameworks.

    Megatron    iteration       12/     500 | … | lm loss: 2.310000E+00 | loss scale: 1.0 | grad norm: 1.23 |
    Trainer     {'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.5}
    MindSpore   epoch: 1 step: 12, loss is 2.31
    MindFormers { Epoch:[  1/  2], step:[   10/ 4031], loss: 10.652, loss_scale: 65536.0, global_norm: [1.23]}
    ImageNet    Epoch: [0][ 10/500]  Loss 2.3100e+00 (2.4000e+00)
    tqdm        12%|█▏        | 12/100 [00:03<00:20, loss=2.31]

Lines are cut at LONGEST characters and names have at most three words, so the time per line is linear in its length.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Iterable, Iterator

from npucmp.health.curves.records import Record

LONGEST = 8192  # characters of a line that are read
NUMBER = r"[-+]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][-+]?[0-9]{1,4})?|[-+]?(?:nan|inf(?:inity)?)"
_VALUE = re.compile(
    rf"(?:[:=]|(?<=\s)is(?=\s))\s{{0,16}}(?:tensor\()?\[?\s{{0,16}}(?P<number>{NUMBER})(?![A-Za-z0-9_])", re.IGNORECASE
)
_WORD = re.compile("[A-Za-z_][A-Za-z0-9_/.-]{0,40}")
WORDS, ROOM = 3, 160  # words of a name; characters before a value that are searched for it
_BARE = re.compile(
    rf"(?<![A-Za-z0-9_/.-])(?P<name>loss|epoch|(?:global_)?step|iter(?:ation)?)\s{{1,16}}\[?\s{{0,8}}"
    rf"(?P<number>{NUMBER})(?![A-Za-z0-9_])",
    re.IGNORECASE,
)
_NESTED = re.compile(
    r"epoch\b[: ]{0,4}\[ {0,8}(?P<epoch>[0-9]{1,9}) {0,8}(?:/[0-9 ]{1,12})?\] {0,4}"
    r"\[ {0,8}(?P<step>[0-9]{1,12}) {0,8}/",
    re.IGNORECASE,
)
_PROGRESS = re.compile(r"(?<![0-9/.])(?P<step>[0-9]{1,12})/[0-9]{1,12}\s{1,4}[\[-]")
_UNTRAINED = re.compile(r"(?<![\w/.-])(?:val|valid|validation|eval|evaluation|test|testing)(?![\w/.-])", re.IGNORECASE)
_OF_LOSS = {"lm", "total", "train", "training", "average", "avg"}  # words before "loss" that are part of its name


def records_of_text(lines: Iterable[str]) -> Iterator[Record]:
    """Yield a record for each line that has a number after a name."""
    for line in lines:
        found = _record(line[:LONGEST])
        if found:
            yield found


def _record(line: str) -> dict[str, float]:
    found = {pair["name"]: float(pair["number"]) for pair in _BARE.finditer(line)}
    end = 0
    for pair in _VALUE.finditer(line):
        name = _name(line[max(end, pair.start() - ROOM) : pair.start()])
        end = pair.end()
        if name:
            found[name] = float(pair["number"])
    if not found:
        return found
    nested, phase = _NESTED.search(line), _UNTRAINED.search(line)
    if nested:
        found.update(epoch=float(nested["epoch"]), step=float(nested["step"]))
    elif not {name.lower() for name in found} & {"step", "global_step", "iteration", "iter"}:
        progress = _PROGRESS.search(line)
        found.update({"step": float(progress["step"])} if progress else {})
    word = phase.group() if phase else ""
    return {_curve_name(name, word): value for name, value in found.items()}


@lru_cache(maxsize=4096)  # lines repeat the same text
def _name(before: str) -> str:
    """The last words before a value; "" if they are not a name."""
    words: list[str] = []
    for word in reversed(before.split()[-WORDS:]):
        plain = word.strip("'\"") if not words else word
        if not _WORD.fullmatch(plain):
            plain = plain.lstrip("'\"{[(<|,;")
            return " ".join([plain, *words] if _WORD.fullmatch(plain) else words)
        words.insert(0, plain)
    return " ".join(words)


@lru_cache(maxsize=4096)
def _curve_name(name: str, phase: str) -> str:
    """A name without the words of a sentence before "loss"; prefixed with the word that marks a validation loss."""
    words = name.split(" ")
    lower = [word.lower() for word in words]
    if "loss" not in lower or _UNTRAINED.search(name):
        return name
    at = lower.index("loss")
    name = " ".join(words[at - (at > 0 and lower[at - 1] in _OF_LOSS) :])
    return f"{phase.lower()} {name}" if phase else name
