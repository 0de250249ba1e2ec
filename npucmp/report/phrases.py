"""Phrases that Answers share: counts, sizes, steps and ranks. localise/evidence.py has the sentences of evidence."""

from __future__ import annotations

from typing import Optional, Sequence, Union

from npucmp.model import Operator, Pair, Result, Root, Run
from npucmp.model.dtypes import size_of
from npucmp.model.stack import source_line, source_path
from npucmp.model.table import run_fact
from npucmp.report.answer import Flow, Row


def count_of(number: int, word: str) -> str:
    """ "1 operator", "1,200 operators"."""
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def ranges(numbers: Sequence[int]) -> str:
    """ "0-3, 8": ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def numbers(name: str, found: Sequence[int]) -> str:
    """ "step 3", "ranks 0-3, 8"; a text of more than 40 characters becomes the first, the last and the count."""
    words = ranges(found)
    if len(words) > 40:
        words = f"{found[0]} to {found[-1]}, {len(found):,} of them"
    return f"{name}{'s' if len(found) > 1 else ''} {words}" if found else ""


def percent(share: float) -> str:
    """ "100 %" only for a share of exactly 1."""
    return "100 %" if share == 1.0 else f"{min(share, 0.999) * 100:.1f} %"


def in_bytes(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}" if unit != "B" else f"{size:.0f} B"
        size /= 1000
    return f"{size:.3g} TB"


def rate_of(result: Result) -> str:
    """Return the duration, the size that was read, and the rate."""
    seconds, size = result.seconds, result.bytes_read
    rate = f"{seconds:.1f} s, {in_bytes(size)}"
    return rate + (f", {size / seconds / 1e9:.2f} GB/s" if seconds > 0.5 and size > 1e8 else "")


def where_words(run: Run) -> list[str]:
    """ "step 0", "rank 1"; a number that the dump lacks is omitted."""
    return [f"{name} {value}" for name, value in (("step", run.step), ("rank", run.rank)) if value is not None]


def known_numbers(**numbers: Union[int, str, None]) -> dict[str, Union[int, str]]:
    """Return numbers by name without those that are not known."""
    return {name: value for name, value in numbers.items() if value is not None and value != ""}


def size_of_run(run: Run) -> tuple[int, int]:
    """Return the number of tensors that were dumped, and the bytes of their values, by recorded shapes and types."""
    return run_fact(run, _size, "file")


def _size(run: Run) -> tuple[int, int]:
    tensors = [*run.dumped()]
    return len(tensors), sum(size_of(tensor.dtype, tensor.shape) for tensor in tensors if tensor.file)


def bytes_of(runs: Sequence[Run]) -> int:
    """Return the bytes of values in dumps."""
    return sum(size_of_run(run)[1] for run in runs)


def describe(run: Run) -> str:
    """Describe a run in one line: format, detail, step, rank, size."""
    tensors, size = size_of_run(run)
    content = f"{count_of(len(run.operators), 'operator')}, {count_of(tensors, 'tensor')}"
    words = run.format, run.detail, *where_words(run), content + (f", {in_bytes(size)}" if size else "")
    return " · ".join(filter(None, words))


def line_of(pair: Pair) -> str:
    """Return the line of the user's code that called an operator, from the side that recorded it."""
    return source_line(pair.operator) or (source_line(pair.golden_op) if pair.golden_op else "")


def path_of(pair: Pair) -> str:
    """Return the recorded path of the file of `line_of`."""
    return source_path(pair.operator) or (source_path(pair.golden_op) if pair.golden_op else "")


def partner_of(pair: Pair) -> str:
    """Return the name of an operator in the golden run, if it differs."""
    return pair.golden_op.name if pair.golden_op and pair.golden_op.name != pair.operator.name else ""


def flow_of(root: Root) -> Optional[Flow]:
    if root.output_error is None and root.input_error is None:
        return None
    return Flow(root.input_error, root.output_error, root.limit)


def of_runs(path: str, runs: Sequence[Run], *names: str) -> Row:
    """Return the values of a dump and of its selected runs for summary.json; `names` are further fields of the first
    run."""
    return {
        "path": path,
        "operators": sum(len(run.operators) for run in runs),
        "tensors": sum(size_of_run(run)[0] for run in runs),
        "bytes": bytes_of(runs),
        "runs": [{"path": run.path, "step": run.step, "rank": run.rank, "notes": list(run.notes)} for run in runs],
        **{name: getattr(runs[0], name) if runs else None for name in names},
    }


def of_operator(operator: Operator) -> Row:
    """Return the cells that identify an operator."""
    return {"op": operator.name, "op_type": operator.op_type, "phase": operator.phase}


def problem_of(run: Run) -> str:
    """Return the reason why a run cannot be read, with its path; most reasons begin with it."""
    return run.problem if run.problem.startswith(run.path) else f"{run.path}: {run.problem}"
