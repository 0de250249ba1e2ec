"""Find the configuration that a training printed into its log.

    table   Megatron-LM, MindSpeed, slime: "---- arguments ----", "  name ..... value", "---- end of arguments ----";
            DeepSpeed: "DeepSpeedEngine configuration:" and rows of the same form
    call    transformers, LlamaFactory: "TrainingArguments(", a line per "name=value,", ")"; also in one line
    tree    transformers: "Model config LlamaConfig {"; DeepSpeed: "json = {"; verl: a dict printed by pprint
    yaml    Hydra, OmegaConf.to_yaml: lines of "name: value"

Blocks of one kind and title replace each other: the last complete one counts. A dict or YAML without a title counts
only if it is nested and has words of a training, because metrics and tool schemas are printed as dicts too. The prefix
of a line names its worker, whose block it belongs to; foreign lines inside a dict are skipped.

Source: logs of verl, Megatron-LM, transformers (from 2020 on) and DeepSpeed (from 2023 on) in public repositories;
Hydra's and slime's layout as their sources print it.

A log of any size is read line by line, without what launchers and loggers add to a line: colours, what a progress bar
overwrote, "(TaskRunner pid=12) " of Ray, "[rank0]: " and "[default0]:" of torchrun, "0: " of srun, "[1,0]<stdout>:" of
mpirun, dates, levels, "[config.py:99:print]" and names of loggers.

The file is untrusted: it is read in blocks, and of a longer line only the begin is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Iterable, Iterator, NamedTuple, Optional

from npucmp.comparability.config_check_zip import LEAVES, flat
from npucmp.comparability.printed_values import printed_arguments, printed_tree, printed_value
from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers.safe_open import open_regular

BLOCK = 1 << 20  # bytes of a read
LONGEST = 1 << 20  # bytes of a line that are kept; a configuration in one line has 30,000

_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\x1b\][^\x07]{0,200}\x07")
_REPEATED = re.compile(r" \[repeated \d+x across cluster\].*$")
_WORKER = re.compile(
    r"\((?:[\w.\-]+ )?pid=\d+(?:, ip=[\w.:]+)?\)|\[?(?:rank|default|local_rank)[ _:]?\d+\]?:|\[\d+,\d+\]<std\w+>:"
    r"|\d{1,5}:(?= )|\[[^\[\]\s]{1,40}:\d+:\w*\](?=:)"
)
_LEVEL = r"(?:DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL)"
_DATED = re.compile(
    r"\[?(?:\d{4}[-/]\d\d[-/]\d\d|\d\d/\d\d/\d{4})[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?"
    rf"(?:\s{{0,4}}[-|]?\s{{0,4}}\[?{_LEVEL}\]?:?)?(?:\s{{0,4}}[-|]\s{{0,4}}[\w.]+(?=\s))*(?:\s{{0,4}}[-|](?=\s))?"
)
_LEVELLED = re.compile(rf"\[?{_LEVEL}(?:\|[\w.]+:\d+)?\]?:?(?=\s)|\[[\w./\-]+(?::\d+)?(?::\w+)?\](?=\s|\[)")
_SEPARATOR = re.compile(r"(?:-{1,2}|\||>>)\s{1,4}")


class LogLine(NamedTuple):
    """A line without additions.

    source    the worker that printed it, "" if the line names none
    is_dated  whether a logger wrote a date or a level before it
    """

    source: str
    text: str
    is_dated: bool = False


def raw_lines(path: str, context: ReadContext = ANYWHERE) -> Iterator[bytes]:
    """Yield the lines of a file without their ends. Raises DumpError if the file is unreadable."""
    with open_regular(path, context) as file:
        kept, at, size = b"", 0, file.size
        while at < size:
            length = min(BLOCK, size - at)
            lines = (kept + file.read(at, length)).split(b"\n")
            at += length
            kept = lines.pop()[:LONGEST]
            yield from lines
        if kept:
            yield kept


def bare_line(raw: bytes) -> LogLine:
    """Return the line without what launchers and loggers add. Spaces that indent the text remain."""
    text = raw[:LONGEST].decode("utf-8", "replace").rstrip("\r\n\0 ")
    if "\r" in text:
        text = text.rpartition("\r")[2]
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    if text.endswith("cluster]"):
        text = _REPEATED.sub("", text)
    sources: list[str] = []
    is_dated = False
    for _ in range(8):
        if text[:1].isspace():
            break
        worker = _WORKER.match(text)
        found = worker or _DATED.match(text) or _LEVELLED.match(text)
        if found is None or not found.end():
            break
        if worker is not None:
            sources.append(worker[0])
        is_dated = is_dated or worker is None
        text = text[found.end() :]
        text = text[1:] if text[:1] in (" ", "\t") else text
        separator = _SEPARATOR.match(text) if worker is None else None
        text = text[separator.end() :] if separator is not None else text
    return LogLine("".join(sources), text, is_dated)


LARGEST = 1 << 20  # characters of a block; verl's has 40,000
LARGEST_YAML = 1 << 17  # characters: YAML is parsed ten times slower
WORKERS = 32  # sources with open blocks at a time
SKIPPED = 400  # foreign lines in a row after which a block is abandoned
KINDS = 64  # titles of blocks in one log
CANDIDATES = 4  # blocks of a kind that are kept, in case that later ones cannot be parsed
FEWEST, FEWEST_WORDS = 8, 2  # names and words of a training in a block without a title

_WORDS = frozenset(
    "lr learning_rate min_lr base_lr optimizer optim batch_size train_batch_size micro_batch_size global_batch_size "
    "per_device_train_batch_size ppo_mini_batch_size seed dtype torch_dtype weight_decay dropout hidden_dropout "
    "hidden_size num_layers num_hidden_layers num_attention_heads seq_length max_seq_length max_position_embeddings "
    "warmup_steps warmup_ratio lr_scheduler_type num_train_epochs epochs max_epochs total_epochs train_iters max_steps "
    "gradient_accumulation_steps gradient_clipping clip_grad tensor_model_parallel_size pipeline_model_parallel_size "
    "context_parallel_size expert_model_parallel_size kl_coef gamma betas eps precision bf16 fp16".split(" ")
)
_MAYBE = re.compile(  # lines that may open a block; YAML begins with its first name
    rb"rguments|rgs\(|onfig|Namespace\(|json = |\{['\"]|^\{|(?:^|[\])>\-|] |INFO:? |\x1b\[0m ?)[\w.\-]+:(?:[ \r]|$)"
)
_TABLE = re.compile(r"(?<!-)-{4,80} ?(?!end of)[\w \-]{0,40}arguments ?-{4,80}\s*$", re.IGNORECASE)
_TABLE_END = re.compile(r"(?<!-)-{4,80} ?end of [\w \-]{0,40}arguments ?-{4,80}", re.IGNORECASE)
_DEEPSPEED = re.compile(r"DeepSpeedEngine configuration:\s*$")
_ROW = re.compile(r"(?:^|\s)([A-Za-z_][\w.\-]*) \.+(?: (.*))?$")
_LONG_ROW = re.compile(r"\s*([A-Za-z_][\w.\-]*)  (\S.*)?$")  # a name that leaves no room for dots
_JSON = re.compile(r"\bjson = \{")
_CALL = re.compile(r"(?:^|[\s:=(\[])([A-Z]\w*(?:Arguments|Args|Config|Configuration)|Namespace)\((?=$|\w+=)(.*)$")
_ARGUMENT = re.compile(r"\s*([A-Za-z_]\w*)=(.*)$", re.DOTALL)
_TITLED = re.compile(r"(?:^|[\s:])([A-Za-z]\w*[cC]onfig|[cC]onfig(?:uration)?|json)(?:\s*[=:])?\s*(\{.*)$")
_INSIDE = re.compile(r"\s+(?:['\"\[\](){}<\d+\-]|(?:True|False|None|true|false|null|nan|inf)\b)|[}\])]")
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*(?:'|\\?$)|\"(?:[^\"\\]|\\.)*(?:\"|\\?$)")
_NAME = re.compile(r"""(?<!\w)([A-Za-z_]\w{0,100})['"]?[ \t]{0,4}[:=]""")
_YAML = re.compile(r"(\s*)(?:- )?['\"]?[A-Za-z_][\w.\-/]*['\"]?:(?:\s+(\S.*))?$|(\s*)- \S.*$")


class LoggedConfig(NamedTuple):
    """The configuration of a log: values by dotted name, and a sentence that names the blocks that were read."""

    values: dict[str, Any]
    note: str


@dataclass
class _Block:
    """Lines of a block that is not complete.

    depth     open brackets; in YAML the indent of the last entry
    is_dated  whether its first line has a date
    skipped   foreign lines in a row; in YAML 1 if the last entry has a value, which may go on in the next line
    """

    form: str
    title: str
    line: int
    lines: list[str] = field(default_factory=list)
    size: int = 0
    depth: int = 0
    skipped: int = 0
    is_dated: bool = False

    def add(self, text: str) -> None:
        self.lines.append(text)
        self.size += len(text) + 1

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class LoggedBlock(NamedTuple):
    """A complete block: its kind, its place and its text."""

    form: str
    title: str
    line: int
    text: str


def logged_config(path: str, context: ReadContext = ANYWHERE) -> Optional[LoggedConfig]:
    """Return the configuration of a log; None if it printed none. Raises DumpError if the file is unreadable."""
    finder = BlockFinder()
    for number, raw in enumerate(raw_lines(path, context), 1):
        if finder.is_idle and not _MAYBE.search(raw):
            continue
        finder.add(number, bare_line(raw))
    finder.finish()
    return _config_of(finder)


class BlockFinder:
    """Collects blocks from lines; `complete` has the last candidates of each kind, `counts` their number."""

    def __init__(self) -> None:
        self.complete: dict[tuple[str, str], list[LoggedBlock]] = {}
        self.counts: dict[tuple[str, str], int] = {}
        self._open: dict[str, _Block] = {}

    @property
    def is_idle(self) -> bool:
        return not self._open

    def add(self, number: int, line: LogLine) -> None:
        source = line.source
        block = self._open.get(source)
        if block is not None and not self._continue(block, line):
            return
        found = _opened(number, line)
        if found is not None:
            self._open.pop(source, None)
            while len(self._open) >= WORKERS:
                self._open.pop(next(iter(self._open)))
            self._open[source] = found
            if found.form in ("tree", "call") and found.depth <= 0:
                self._close(source)

    def finish(self) -> None:
        """Close what the end of the file ends."""
        for source, block in [*self._open.items()]:
            if block.form == "yaml":
                self._close(source)

    def _continue(self, block: _Block, line: LogLine) -> bool:
        """Add a line to an open block. Return whether the line may open another block."""
        if block.size > (LARGEST_YAML if block.form == "yaml" else LARGEST) or block.skipped > SKIPPED:
            self._open.pop(line.source)
            return True
        return {"table": self._table, "call": self._call, "tree": self._tree, "yaml": self._yaml}[block.form](
            block, line
        )

    def _table(self, block: _Block, line: LogLine) -> bool:
        source, text = line.source, line.text
        if _TABLE_END.search(text):
            self._close(source)
            return False
        if block.title and _JSON.search(text):
            self._close(source)
            return True
        row = _ROW.search(text) or _LONG_ROW.match(text)
        if row is not None:
            block.add(f"{row[1]} {row[2] or ''}")
        block.skipped = 0 if row is not None else block.skipped + 1
        return row is None and bool(_TABLE.search(text) or _DEEPSPEED.search(text))

    def _call(self, block: _Block, line: LogLine) -> bool:
        source, text = line.source, line.text
        if text.strip() == ")":
            self._close(source)
            return False
        if _ARGUMENT.match(text):
            block.add(text.strip())
            block.skipped = 0
        elif text.startswith(("-", "[")) or _CALL.search(text):
            block.skipped += 1
            return True
        elif block.lines:
            block.lines[-1] += " " + text.strip()  # a value of several lines
            block.size += len(text)
            block.skipped += 1
        return False

    def _tree(self, block: _Block, line: LogLine) -> bool:
        source, text = line.source, line.text
        if not _INSIDE.match(text):
            block.skipped += 1
            return text.startswith("{") or _TITLED.search(text) is not None or _TABLE.search(text) is not None
        block.skipped = 0
        block.add(text)
        block.depth += _depth(text)
        if block.depth <= 0:
            self._close(source)
        return False

    def _yaml(self, block: _Block, line: LogLine) -> bool:
        source, text = line.source, line.text
        entry = _YAML.match(text)
        if line.is_dated and not block.is_dated:  # another message
            self._close(source)
            return True
        deeper = text[:1].isspace() and len(text) - len(text.lstrip()) > block.depth
        if entry is not None or (deeper and block.skipped):
            block.add(text)
            if entry is not None:
                block.depth = len(entry[1] if entry[1] is not None else entry[3])
                block.skipped = int(bool(entry[2]) or entry[3] is not None)  # a long value goes on in the next line
            return False
        self._close(source)
        return True

    def _close(self, source: str) -> None:
        block = self._open.pop(source)
        first = _NAME.search(block.text) if not block.title and block.form != "table" else None
        key = block.form, first[1] if first is not None else block.title  # blocks of one kind begin with one name
        if not _is_candidate(block) or (key not in self.complete and len(self.complete) >= KINDS):
            return
        kept = self.complete.setdefault(key, [])
        kept.append(LoggedBlock(block.form, block.title, block.line, block.text))
        del kept[:-CANDIDATES]
        self.counts[key] = self.counts.get(key, 0) + 1


def _opened(number: int, line: LogLine) -> Optional[_Block]:
    """The block that a line opens."""
    text = line.text
    if _TABLE.search(text):
        return _Block("table", "", number)
    if _DEEPSPEED.search(text):
        return _Block("table", "DeepSpeed", number)
    call = _CALL.search(text)
    if call is not None:
        block = _Block("call", call[1], number, depth=1)
        if call[2]:  # all in one line
            block.add(call[2])
            block.depth = 0
        return block
    titled = _TITLED.search(text)
    if titled is not None or text.startswith(("{'", '{"')) or text == "{":
        tree = titled[2] if titled is not None else text
        title = titled[1] if titled is not None else ""
        block = _Block("tree", {"json": "DeepSpeed", "config": "", "configuration": ""}.get(title, title), number)
        block.add(tree)
        block.depth = _depth(tree)
        return block
    entry = _YAML.match(text)
    if entry is not None and entry[3] is None:
        block = _Block("yaml", "", number, [], 0, len(entry[1]), int(bool(entry[2])), line.is_dated)
        block.add(text)
        return block
    return None


def _depth(text: str) -> int:
    """Brackets that a line opens, less those that it closes; brackets in strings do not count."""
    bare = _TEXT.sub("", text)
    return sum(map(bare.count, "{[(")) - sum(map(bare.count, "}])"))


def _is_candidate(block: _Block) -> bool:
    """Whether a complete block looks like a configuration."""
    if block.title or block.form == "table":
        return bool(block.lines)
    if block.form == "yaml" and len(block.lines) < FEWEST:
        return False
    text = block.text
    is_nested = text.count("{") > 1 if block.form == "tree" else bool(re.search(r":\s*\n\s", text))
    names = {name.lower() for name in _NAME.findall(text)}
    return is_nested and len(names) >= FEWEST and len(names & _WORDS) >= FEWEST_WORDS


def _config_of(finder: BlockFinder) -> Optional[LoggedConfig]:
    """Parse the last block of each kind that can be parsed. Several titles are parts of the names."""
    found: list[tuple[LoggedBlock, int, dict[str, Any]]] = []
    for key, blocks in finder.complete.items():
        for block in reversed(blocks):
            parsed = _parsed(block)
            if parsed:
                found.append((block, finder.counts[key], flat(parsed)))
                break
    if not found:
        return None
    trees = [one for one in found if not one[0].title and one[0].form != "table"]
    if trees:  # the longest is the configuration; a shorter one is a part of it or a coincidence
        longest = max(trees, key=lambda one: len(one[2]))
        found = [one for one in found if one not in trees or one is longest]
    found.sort(key=lambda one: (one[0].form != "table", one[0].line))
    values: dict[str, Any] = {}
    many = len({block.title for block, _, _ in found}) > 1
    for block, _, own in found:
        prefix = f"{block.title}." if block.title and many else ""
        for name, value in own.items():
            if len(values) < LEAVES:
                values.setdefault(f"{prefix}{name}", value)
    return LoggedConfig(values, "; ".join(dict.fromkeys(_words(block, count) for block, count, _ in found)))


def _words(block: LoggedBlock, count: int) -> str:
    what = block.title or {"table": "arguments", "tree": "a dict", "yaml": "YAML"}[block.form]
    return f"{what} from line {block.line:,}" + (f" (the last of {count:,})" if count > 1 else "")


def _parsed(block: LoggedBlock) -> Optional[dict[str, Any]]:
    if block.form == "table":
        rows = (line.partition(" ") for line in block.text.split("\n"))
        return {name: printed_value(value) for name, _, value in rows if value != "{"}
    if block.form == "tree":
        return printed_tree(block.text)
    if block.form == "yaml":
        return _yaml(block.text.split("\n"))
    if "\n" not in block.text and not block.text.endswith(","):
        return printed_arguments(block.text)
    return _arguments(block.text.split("\n"))


def _arguments(lines: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in lines:
        one = _ARGUMENT.match(line)
        if one is not None:
            text = one[2].strip()
            found[one[1]] = printed_value(text[:-1] if text.endswith(",") else text)
    return found


def _yaml(lines: list[str]) -> Optional[dict[str, Any]]:
    """Parse YAML after the lines before its outermost level. None if it is not YAML."""
    import yaml

    indents = [len(line) - len(line.lstrip()) for line in lines]
    start = indents.index(min(indents))
    text = "\n".join(line[min(indents) :] for line in lines[start:])
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, AttributeError):
        return None
    return tree if isinstance(tree, dict) else None
