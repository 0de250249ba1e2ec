"""Define a rule: a function of Health that yields Found, with the facts that it needs to decide.

    @rule("mine.router", severity="warning", needs="values, calls", limit=0.9,
          says="one expert gets nearly all tokens", remedy="balance the load")
    def router(health, limit):
        for op in health.operators("exponential", path="*router*"):
            ...
            yield Found(op, value=share, because=f"largest share {share:.0%}")

Built-in rules are such functions, one file per family (rules/), listed in RULES. A rule does not know other rules;
evaluate.py orders causes and consequences. A rule runs only if the run has everything that it `needs`.

Users add rules in files that they name, and in installed packages (entry points npucmp.rules). A file is executed as a
Python script. No script is ever taken from a dump.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from npucmp.errors import UsageError
from npucmp.model.entry_points import load_entry_points

if TYPE_CHECKING:  # facts need numpy; the help of check imports this module
    from npucmp.health.facts import Health, Op, Parameter, Tensor

    Place = Union[Op, Parameter, Tensor, None]  # None: the run as a whole

SEVERITIES = ("hint", "warning", "error")


class Found(NamedTuple):
    """A finding of a rule at a place. `because` is a complete clause with its figures.

    severity, remedy  if they differ from the rule's own
    step              index of the step, if the place does not imply it
    places            number of places that the finding covers; `also` names those after the first
    unit              of value and limit: "times", "%", "elements"
    """

    at: Place
    because: str
    value: Optional[float] = None
    severity: str = ""
    remedy: str = ""
    step: Optional[int] = None
    places: int = 1
    also: tuple[str, ...] = ()
    limit: Optional[float] = None
    unit: str = ""


class Need(NamedTuple):
    """A requirement of a rule: a function that counts how many a run has, and the message if it has none."""

    number: Callable[[Health], int]
    missing: str


def _operators(*traits: str) -> Callable[[Health], int]:
    return lambda health: sum(1 for _ in health.operators(*traits))


def _pairs(health: Health) -> int:
    """Number of pairs of steps, or of parameters with a recorded update, whichever is larger."""
    return max(len(health.steps) - 1, sum(any(one.updates) for one in health.parameters))


NEEDS: Mapping[str, Need] = {
    "figures": Need(lambda health: int(health.has_figures), "the dump holds no statistics and no values"),
    "values": Need(lambda health: int(health.has_values), "needs values: the dump holds statistics only"),
    "bits": Need(lambda health: int(health.has_bits), "needs values or checksums"),
    "marks": Need(lambda health: int(health.has_marks), "needs values or checksums"),
    "steps": Need(lambda health: len(health.steps) - 1, "needs two dumped steps"),
    "four steps": Need(lambda health: len(health.steps) - 3, "needs four dumped steps"),
    "changes": Need(_pairs, "needs two dumped steps"),
    "updates": Need(lambda health: sum(len(one.updates) for one in health.parameters), "no optimizer was dumped"),
    "ranks": Need(lambda health: len(health.ranks) - 1, "needs two ranks"),
    "backward": Need(lambda health: int(health.training), "needs a backward pass"),
    "evaluation": Need(
        lambda health: int(not health.training),
        "apply to evaluation only; this run has a backward pass: --phase eval if it is one",
    ),
    "calls": Need(lambda health: int(health.has_calls), "needs the calls within modules (level L1 or mix)"),
    "names": Need(lambda health: int(health.has_names), "needs parameters by name (level L0 or mix)"),
    "parameters": Need(lambda health: len(health.parameters), "no parameter is in the dump"),
    "matrices": Need(lambda health: len(health.matrices), "no weight of two axes is in the dump"),
    "gradients": Need(
        lambda health: sum(any(one.gradients) for one in health.parameters), "no gradient of a parameter is in the dump"
    ),
    "moves": Need(
        lambda health: sum(bool(one.moves) for one in health.parameters), "no parameter has values in two steps"
    ),
    "inputs": Need(lambda health: sum(len(step.inputs) for step in health.steps), "no input of the network is known"),
    "losses": Need(lambda health: sum(len(step.losses) for step in health.steps), "no loss is in the dump"),
    "tensors": Need(lambda health: sum(1 for _ in health.tensors()), "the dump holds no tensor"),
    "relus": Need(_operators("rectifies"), "no ReLU is in the dump"),
    "dropouts": Need(_operators("drops"), "no dropout is in the dump"),
    "batch norms": Need(_operators("averages"), "no BatchNorm is in the dump"),
    "curve": Need(lambda health: int(health.log is not None), "needs a log of the training: --loss FILE"),
    "validation": Need(
        lambda health: int(health.log is not None and health.log.validation is not None), "no validation loss is logged"
    ),
    "loss scale": Need(
        lambda health: int(health.log is not None and health.log.scale is not None), "no loss scale is logged"
    ),
    "saturating": Need(_operators("saturates"), "no sigmoid or tanh is in the dump"),
}


@dataclass(frozen=True)
class Rule:
    """One rule. The first part of its name is its group; the last of its `needs` is the kind of item that it examines.

    limit   the number that it judges by; None if it has no adjustable limit
    says    the meaning of a finding, in a few words; `remedy` is the advice
    source  origin of rule and limit
    off     runs only if the user names it
    words   names of further numbers that a user may set; the rule then receives these instead of a limit
    """

    name: str
    find: Callable[[Health, Any], Iterable[Found]]
    severity: str
    needs: tuple[str, ...]
    limit: Optional[float]
    says: str
    remedy: str
    source: str
    off: bool = False
    words: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]

    def why_not(self, health: Health) -> str:
        """The reason why it cannot decide on this run; "" if it can."""
        found = next((NEEDS[one].missing for one in self.needs if NEEDS[one].number(health) < 1), "")
        return "the dump holds only weights" if found and health.is_checkpoint else found

    def looks_at(self, health: Health) -> int:
        return NEEDS[self.needs[-1]].number(health)


def rule(
    name: str,
    severity: str = "warning",
    needs: str = "tensors",
    limit: Optional[float] = None,
    says: str = "",
    remedy: str = "",
    source: str = "",
    off: bool = False,
    words: str = "",
) -> Callable[[Callable[..., Iterable[Found]]], Rule]:
    """Make a function of (health, limit) a Rule. `needs` are words of NEEDS, separated by commas."""
    wanted, own = tuple(word.strip() for word in needs.split(",")), tuple(words.split())
    unknown = [word for word in wanted if word not in NEEDS]
    if unknown or severity not in SEVERITIES:
        raise ValueError(f"rule {name}: unknown need or severity {unknown or severity!r}")
    return lambda function: Rule(name, function, severity, wanted, limit, says, remedy, source, off, own)


GROUP = "npucmp.rules"


def own_rules(
    files: Sequence[str | PathLike[str]], installed: bool = True, known: Sequence[Rule] = ()
) -> tuple[Rule, ...]:
    """Return the rules of files, in the order of their text, then those of packages. Raise UsageError if a source holds
    no rule or cannot be executed, and for a duplicate name."""
    found: list[Rule] = []
    names = {one.name: "npucmp" for one in known}
    for source, rules in [*_of_files(files), *(_of_packages() if installed else ())]:
        for one in rules:
            if one.name in names:
                raise UsageError(f"{source}: rule {one.name} already exists in {names[one.name]}")
            names[one.name] = source
            found.append(one)
    return tuple(found)


def _of_files(files: Sequence[str | PathLike[str]]) -> Iterator[tuple[str, list[Rule]]]:
    for number, file in enumerate(files):
        path, name = Path(file), f"npucmp_plugin_{number}"
        if not path.is_file():
            raise UsageError(f"{path}: no such file")
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise UsageError(f"{path}: not a Python file (*.py)")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses of the file look there
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # user code raises anything
            raise UsageError(f"{path}: {type(error).__name__}: {error}") from error
        yield str(path), _rules(str(path), module)


def _of_packages() -> Iterator[tuple[str, list[Rule]]]:
    for name, loaded in load_entry_points(GROUP, "; --no-plugins skips it").items():
        yield f"entry point {name}", _rules(f"entry point {name}", loaded)


def _rules(source: str, loaded: Any) -> list[Rule]:
    """The rules in a module or a sequence, or the single rule."""
    values = (
        [loaded] if isinstance(loaded, Rule) else loaded if isinstance(loaded, (list, tuple)) else vars(loaded).values()
    )
    found = [*dict.fromkeys(one for one in values if isinstance(one, Rule))]
    if not found:
        raise UsageError(f"{source}: holds no rule; docs/extending.md has an example")
    return found
