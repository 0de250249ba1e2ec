"""Row of the distribution of network inputs: whether other samples come from the same source, as those of a training
and a test should.

It compares inputs that no relation explains (other samples, or another number of them). Inputs of all common steps are
put together by the operator that reads them; a batch that an earlier step has too counts once.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np

from npucmp.comparability.answers import close, differs, not_applicable, same, unknown
from npucmp.comparability.batch_statistics import IN_SHARES, SHARES, Batch, DistributionTest, batch_of, compare_batches
from npucmp.comparability.check_item import CheckItem
from npucmp.comparability.inputs import INPUT, LABELS, input_rows, known_values, pairings
from npucmp.comparability.metadata import WEIGHTS_ALONE
from npucmp.comparability.run_pair import RunPair
from npucmp.comparability.tensors import readable_values
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import Array
from npucmp.model import Run, first_of
from npucmp.model.item_result import ItemResult
from npucmp.model.optypes import holds_weights_alone
from npucmp.report.phrases import count_of

FALSE_ALARMS = 0.01  # share of pairs of batches from one source that may be called different
DOUBTFUL = 0.05  # p up to which they are called close
OTHER_SAMPLES = ("differs", "shape")  # relations of inputs with other samples
OF_CLASSES = 2  # most axes of integers that are classes or tokens; images have more
MOST_INPUTS = 8  # inputs that are compared; each takes a part of FALSE_ALARMS


class InputBatches(NamedTuple):
    """The samples of one network input on both sides, of all steps."""

    name: str
    target: Batch
    golden: Batch


def distribution(both: RunPair) -> ItemResult:
    """Whether the samples of both sides have the same distribution: those of --data, else network inputs."""
    if both.user_input.data is not None:
        return _answer(_batches_of_files(both, *both.user_input.data), "no array of --data has one name on both sides",
                       "error")  # fmt: skip
    if not both.targets:
        return unknown("needs dumps of both, or --data with recorded batches")
    rows = input_rows(both)
    if not rows and all(map(holds_weights_alone, (*both.targets, *both.goldens))):
        return not_applicable(WEIGHTS_ALONE)
    if not rows:
        return unknown("no network input is known in both dumps")
    if not any(row.relation.kind in OTHER_SAMPLES and row.certain for row in rows):
        return not_applicable("the inputs are the same, or the row input names their relation")
    return _answer(_batches(both), "needs the values of inputs in both dumps")


def _answer(pairs: list[InputBatches], otherwise: str, severity: str = "") -> ItemResult:
    """Compare the batches of all inputs; each may give its part of the false alarms."""
    if not pairs:
        return unknown(otherwise)
    alpha = FALSE_ALARMS / len(pairs)
    tests = [(one, compare_batches(one.target, one.golden, alpha)) for one in pairs]
    odd = [(one, test) for one, test in tests if test.p is not None and test.p <= alpha]
    if odd:
        one, test = odd[0]
        more = f" (and {count_of(len(odd) - 1, 'input')} more)" if len(odd) > 1 else ""
        words = f"{one.name}: {_odd_words(test)}; {_sizes(one, test)}{more}"
        return differs(words, severity, places=len(odd), first=one.name, value=test.p, limit=alpha)
    if all(test.sizes == (test.shared, test.shared) for _, test in tests):
        return same(f"{tests[0][0].name}: the same {tests[0][1].shared} samples", places=len(tests))
    few = [(one, test) for one, test in tests if test.p is None]
    if few:
        one, test = few[0]
        return unknown(f"{one.name}: {_sizes(one, test)} are too few to decide: dump more steps or larger batches")
    one, test = min(tests, key=lambda found: found[1].p or 0.0)
    words = f"{one.name}: one distribution as far as {_sizes(one, test)} show (p {test.p:.2g})"
    answer = close if (test.p or 0.0) <= DOUBTFUL / len(pairs) else same
    return answer(words, places=len(tests), value=test.p, limit=alpha)


def _odd_words(test: DistributionTest) -> str:
    words = []
    for name, own, other in test.odd:
        if name == SHARES:
            words.append(f"{name} differ by {own:.0%}")
        else:
            words.append(f"{name} {_figure(name, own)} against {_figure(name, other)}")
    return f"{first_of(words, 3)}, beyond sampling error (p {test.p:.2g})"


def _figure(name: str, value: float) -> str:
    if value != value:
        return "none"
    return f"{value:.2%}" if name in IN_SHARES else f"{value:.4g}"


def _sizes(one: InputBatches, test: DistributionTest) -> str:
    words = f"{test.sizes[0]} samples against {test.sizes[1]}"
    notes = [f"{test.shared} are in both"] if test.shared else []
    notes += [f"{batch.duplicates} repeated in {side} count once" for side, batch in
              (("target", one.target), ("golden", one.golden)) if batch.duplicates]  # fmt: skip
    return words + (f" ({', '.join(notes)})" if notes else "")


def _batches(both: RunPair) -> list[InputBatches]:
    """The samples of the inputs that no relation explains, by the operator that reads them."""
    found: dict[tuple[str, str], tuple[SideSamples, SideSamples]] = {}
    sizes: dict[int, tuple[int, int]] = {}  # samples of a step on both sides, by its first input
    for one, row in zip(pairings(both), input_rows(both)):
        if one.role != LABELS and one.target.shape and one.golden.shape:
            sizes.setdefault(id(one.together), (one.target.shape[0], one.golden.shape[0]))
        key = row.op, row.slot
        if (
            row.relation.kind not in OTHER_SAMPLES
            or not row.certain
            or (len(found) >= MOST_INPUTS and key not in found)
        ):
            continue
        values = [known_values(tensor, both.context) for tensor in (one.target, one.golden)]
        if any(array is None or not array.ndim for array in values):
            continue
        are_classes = one.role != INPUT and all(array is not None and array.dtype.kind in "iub" for array in values)
        sides = found.setdefault(key, (SideSamples(are_classes), SideSamples(are_classes)))
        for side, array, size in zip(sides, values, sizes.get(id(one.together), (0, 0))):
            assert array is not None
            side.add(array, size if one.role == LABELS else 0)
    return [InputBatches(f"{op} {slot}", *(side.batch() for side in sides)) for (op, slot), sides in found.items()]


def _batches_of_files(both: RunPair, targets: Sequence[Run], goldens: Sequence[Run]) -> list[InputBatches]:
    """The samples of arrays with one name on both sides, or of the only array of each side."""
    sides = [_arrays(runs, both.context) for runs in (targets, goldens)]
    if all(len(side) == 1 for side in sides):
        names = [(next(iter(sides[0])), next(iter(sides[1])))]
    else:
        names = [(name, name) for name in sides[0] if name in sides[1]][:MOST_INPUTS]
    found = []
    for own, other in names:
        arrays = sides[0][own], sides[1][other]
        are_classes = all(one.dtype.kind in "iu" and one.ndim <= OF_CLASSES for side in arrays for one in side)
        batches = [SideSamples(are_classes) for _ in arrays]
        for batch, side in zip(batches, arrays):
            for array in side:
                batch.add(array, 0)
        found.append(InputBatches(own, *(batch.batch() for batch in batches)))
    return found


def _arrays(runs: Sequence[Run], context: ReadContext) -> dict[str, list[Array]]:
    """Readable arrays of files by name; those of several steps have one name."""
    found: dict[str, list[Array]] = {}
    for run in runs:
        for operator in run.operators:
            for tensor in operator.tensors:
                values = readable_values(tensor, context)
                if values is not None and values.ndim:
                    found.setdefault(f"{operator.name} {tensor.slot}", []).append(values)
    return found


class SideSamples:
    """The samples of an input of one side."""

    def __init__(self, are_classes: bool) -> None:
        self._are_classes = are_classes
        self._samples: list[Array] = []
        self._seen: set[int] = set()

    def add(self, array: Array, size: int) -> None:
        """Add the batch of a step, unless an earlier step had it. Labels of all positions of `size` sequences are
        divided into the sequences, because positions of one sequence are not independent."""
        content = hash(array.tobytes())
        if content in self._seen:
            return
        self._seen.add(content)
        if array.ndim == 1 and 0 < size < len(array) and len(array) % size == 0:
            array = array.reshape(size, -1)
        self._samples += [*array]

    def batch(self) -> Batch:
        return batch_of([np.asarray(one) for one in self._samples], self._are_classes)


ROWS = (
    CheckItem(
        "data.distribution",
        "warning",
        "distribution of other samples",
        "take the samples of both from one data set, prepared alike",
        distribution,
        False,
    ),
)
