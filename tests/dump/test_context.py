"""What may be read is said by the caller, not by what was read before, and reaches every reader and every worker."""

from __future__ import annotations

import ast
import pickle

import numpy as np
import pytest

import npucmp
from npucmp import Limits
from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.measure.pairs import measure
from npucmp.model import Pair, Verdict
from tests.test_layers import MODULES, tree


@pytest.fixture
def linked(tmp_path):
    """A dump with a link to a tensor of another dump, and one without links."""
    for name in ("other", "target", "golden"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "plain.npy", np.arange(3.0))
    np.save(tmp_path / "other" / "secret.npy", np.arange(4.0))
    np.save(tmp_path / "golden" / "link.npy", np.arange(4.0))
    (tmp_path / "target" / "link.npy").symlink_to(tmp_path / "other" / "secret.npy")
    return tmp_path


def told(report):
    return {finding.pair.operator.name: finding.verdict for finding in report.findings}


def test_what_was_opened_before_opens_no_links(linked):
    npucmp.open_runs(linked / "other")
    found = npucmp.compare(linked / "target", linked / "golden")
    assert told(found) == {"plain": Verdict.MATCH, "link": Verdict.UNREADABLE}
    assert any("refused: a link that leads out of the dump" in one.because for one in found.findings)


def test_a_run_that_is_opened_alone_is_confined(linked):
    (run,) = npucmp.open_runs(linked / "target")
    assert {operator.name: bool(operator.tensors[0].problem) for operator in run.operators} == {
        "link": True,
        "plain": False,
    }


@pytest.mark.parametrize("jobs", [1, 2])
def test_workers_keep_to_limits_and_dumps(linked, jobs, monkeypatch):
    """One pair in each batch, so that two processes have something to do."""
    monkeypatch.setattr("npucmp.measure.executor.BATCH", 1)
    both = linked / "target", linked / "golden"
    assert told(npucmp.compare(*both, jobs=jobs))["link"] is Verdict.UNREADABLE
    assert told(npucmp.compare(*both, jobs=jobs, limits=Limits(links_out=1)))["link"] is Verdict.MATCH
    refused = npucmp.compare(*both, jobs=jobs, limits=Limits(tensor_bytes=30))
    assert told(refused) == {"plain": Verdict.MATCH, "link": Verdict.UNREADABLE}
    assert told(npucmp.compare(*both, jobs=jobs)) == {"plain": Verdict.MATCH, "link": Verdict.UNREADABLE}


def test_the_same_run_under_another_context(linked):
    """A run does not know what was granted to open it."""
    (run,) = npucmp.open_runs(linked / "target", context=ReadContext(Limits(links_out=1)))
    (operator,) = (operator for operator in run.operators if operator.name == "link")
    pair = Pair(0, "output:0", operator, operator, *operator.tensors, *operator.tensors)
    assert measure(pair, context=ANYWHERE).moments is not None
    assert "leads out" in measure(pair, context=ANYWHERE.confine(linked / "target")).problem


def test_a_context_is_a_value(tmp_path):
    context = ReadContext(Limits(ndim=5)).confine(tmp_path)
    again = pickle.loads(pickle.dumps(context))
    assert again == context == context.confine(tmp_path) and len({again, context, ANYWHERE}) == 2
    with pytest.raises(AttributeError):
        context.limits.ndim = 6


def test_a_run_is_opened_within_the_limits(linked):
    (run,) = npucmp.open_runs(linked / "golden", context=ReadContext(Limits(npy_header_bytes=10)))
    assert all("more than the limit npy_header_bytes of 10" in op.tensors[0].problem for op in run.operators)


# --- no call leaves it out


def taking_a_context():
    """Whole names of the functions and classes that take a context, which may often be left out."""
    for module in MODULES:
        for node in tree(module).body:
            inits = [one for one in getattr(node, "body", ()) if getattr(one, "name", "") == "__init__"]
            for one in inits if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(one, ast.FunctionDef) and "context" in [arg.arg for arg in one.args.args]:
                    yield f"{module}.{node.name}"


def meanings(module):
    """Name in a module → whole name of what it stands for."""
    found = {node.name: f"{module}.{node.name}" for node in tree(module).body if hasattr(node, "name")}
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom):
            found.update((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
    return found


def called(call, names):
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
        return f"{names.get(call.func.value.id)}.{call.func.attr}"
    return names.get(getattr(call.func, "id", ""), "")


USERS_OWN = {
    "npucmp.commands.settings",
    "npucmp.align.mapping",
    "npucmp.health.settings",
    "npucmp.judge.tolerance",
}  # files that no dump names


@pytest.mark.lint
def test_no_call_inside_drops_the_context():
    """A default serves those who use the library; npucmp itself would read without limits and confinement."""
    functions = set(taking_a_context())
    assert {"npucmp.dump.readers.safe_open.open_regular", "npucmp.measure.pairs.payload_of"} <= functions
    assert len(functions) > 40
    for module in MODULES.keys() - USERS_OWN:
        names = meanings(module)
        for call in (node for node in ast.walk(tree(module)) if isinstance(node, ast.Call)):
            if called(call, names) in functions:
                assert "context" in ast.unparse([*call.args, *call.keywords]).lower(), f"{module}:{call.lineno}"
