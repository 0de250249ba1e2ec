"""`import npucmp` has the powers of the command line: the same names, the same options, the same answers."""

from __future__ import annotations

import inspect
import json
import pkgutil
import subprocess
import sys
import zipfile
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import npucmp
from npucmp.cli import npucmp as group
from npucmp.dump.formats import FORMATS
from npucmp.errors import DumpError, UsageError
from tests.reports import named
from tests.test_layers import HEAVY

SOFTMAX = Path(__file__).parent.parent / "sample_dumps" / "msprobe_softmax"
TARGET, GOLDEN = SOFTMAX / "target", SOFTMAX / "golden"
STEPS = SOFTMAX.parent / "msprobe_steps"  # which has two suspects

WRITERS = ("write_reports", "write_junit", "write_format")
FUNCTIONS = {  # command → the functions that do the same
    "compare": ("compare", "follow_compare", *WRITERS), "overflow": ("overflow", *WRITERS),
    "fusion-diff": ("fusion_diff", *WRITERS), "rerun-diff": ("rerun_diff", *WRITERS),
    "check": ("check", "follow_check", *WRITERS), "replay": ("replay", *WRITERS),
    "precheck": ("precheck", *WRITERS), "merge": ("merge", *WRITERS), "diff": ("diff", *WRITERS),
    "plan": ("plan", "write_plan"), "extract": ("extract",), "ticket": ("ticket", "write_ticket"),
    "show": ("show", "fit"), "formats": ("formats",), "rule": ("rule",), "columns": ("columns",),
    "parity": ("parity", *WRITERS),
}  # fmt: skip
OF_SCREENS = {"top", "verbose", "quiet", "color", "json", "no_config"}  # print(result), str(result), result.to_dict()
OTHERWISE = {  # parameter of a command → the one that does the same
    "output": "directory", "show_progress": "progress", "junit": "file", "scheduler": "executor", "dumps": "paths",
    "folders": "reports", "report_format": "format",
}  # fmt: skip
ELSEWHERE = {  # what another function does
    ("compare", "follow"): "follow_compare", ("check", "follow"): "follow_check", ("compare", "list_rules"): "RULES",
    ("compare", "dry_run"): "comparison_plan",
    ("check", "listed"): "check_rules", ("replay", "reproducer"): "extract",
    ("compare", "baseline"): "diff", ("check", "baseline"): "diff", ("replay", "baseline"): "diff",
    ("fusion-diff", "baseline"): "diff", ("show", "fit"): "fit", ("plan", "output"): "write_plan",
}  # fmt: skip


COMMANDS = group.list_commands(click.Context(group))


def test_every_command_is_a_function_of_its_own_name():
    """No package has the name of a command: it would hide the function as soon as it is imported."""
    for module in pkgutil.walk_packages(npucmp.__path__, "npucmp."):
        assert module.name.count(".") > 1 or module.name.partition(".")[2] not in COMMANDS, module.name
    for name in COMMANDS:
        assert inspect.isfunction(getattr(npucmp, name.replace("-", "_"))), name


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_a_keyword_of_its_functions(command):
    known = {
        name for function in FUNCTIONS[command] for name in inspect.signature(getattr(npucmp, function)).parameters
    }
    given = {one.name for one in group.get_command(click.Context(group), command).params}
    missing = {name for name in given - OF_SCREENS if OTHERWISE.get(name, name) not in known}
    assert not {name for name in missing if ELSEWHERE.get((command, name)) not in npucmp.__all__}


def test_what_the_door_names_is_there_and_explained():
    assert {*npucmp.__all__} <= {*dir(npucmp)}
    assert not [name for name in npucmp.__all__ if name != "RULES" and len(getattr(npucmp, name).__doc__) <= 20]


def test_nothing_else_is_loaded_until_it_is_asked_for():
    """Neither numpy nor a room of the package; the version and the place of the presenter are constants."""
    code = "import npucmp, sys; print(*sorted(sys.modules))"
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {*got.stdout.split()}
    assert "npucmp" in loaded and not loaded & {"numpy", "click", "pyarrow", "zipfile", *HEAVY}
    assert {name for name in loaded if name.startswith("npucmp.")} == {"npucmp.presenter", "npucmp.version"}
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        npucmp.nothing  # noqa: B018


NOT_OF_ONE_RANK = {  # packages and modules that a plain comparison of one step and rank does not need
    "health", "overflows", "plans", "relations", "reruns", "follow", "tickets", "fusion",
    *(f"comparability.{name}" for name in ("run_pair", "registry", "workflow", "data_relation", "given_inputs")),
    *(f"recompute.{name}" for name in (
        "run", "data_flow", "gaps", "torch_functions", "rounding_noise", "hypotheses", "replay_gaps", "numpy_inputs",
        "numpy_copies",
    )),
    "align.mapping", "align.content_hash", "dump.graphs", "dump.overlay",
    *(f"localise.{name}" for name in (
        "remote_inputs", "golden_graph", "rank_digest", "next_dump", "stat_test",
        "open_tensors",
    )),
    *(f"measure.{name}" for name in ("bitwise", "dask_executor", "checkpoint", "tensor_stats", "range_scan", "views")),
    *(f"report.{name}" for name in (
        "diff", "error_origin", "csv", "rank_tables", "html", "matrix", "overview", "page_json", "rank_picture", "xlsx",
    )),
    "flow.collectives",
    *(f"workflows.{name}" for name in (
        "diff", "extra_dumps", "graphs", "recorded_frames", "report_reader", "scratch",
    )),
}  # fmt: skip
MOST_MODULES = 147  # with those that read the values of a suspect and of nodes again, without what recomputes by numpy


def modules_of(*words):
    """The modules that a command loads in a process of its own, and those of npucmp by their names within it."""
    code = "import sys; from npucmp.cli import main; sys.argv[0] = 'npucmp'\ntry: main()\nfinally: print(*sys.modules)"
    command = [sys.executable, "-c", code, *map(str, words)]
    got = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert not got.stderr
    loaded = {*got.stdout.splitlines()[-1].split()}
    return loaded, {name.partition(".")[2] for name in loaded if name.split(".")[0] == "npucmp"}


@pytest.mark.parametrize("command", ["compare", "replay", "show"])
def test_the_help_of_a_command_loads_its_options_only(command):
    loaded, own = modules_of(command, "--help")
    assert not loaded & {"numpy", "msgspec", *HEAVY}
    assert not {name.partition(".")[0] for name in own} & {"align", "measure", "flow", "judge", "localise", "report"}


def test_a_plain_comparison_loads_what_it_needs():
    sample = SOFTMAX.parent / "msprobe_extra_operator"  # all its tensors are compared, one operator is wrong
    loaded, own = modules_of("compare", sample / "target", sample / "golden")
    assert {"cli", "workflows.compare", "comparability.warning"} <= own
    engine = {name for name in own if name.partition(".")[0] == "recompute"} | {"dump.readers.msprobe_record"}
    assert len(own - engine) <= MOST_MODULES
    assert not {name for name in own for other in NOT_OF_ONE_RANK if f"{name}.".startswith(f"{other}.")}
    assert not {name.split(".")[0] for name in loaded} & {"torch", *HEAVY} - {"ml_dtypes"}  # the sample has bfloat16
    assert "importlib.metadata" not in loaded and "dump.installed_formats" not in own  # no extension is looked for


def test_what_a_plain_comparison_does_not_load_is_there():
    """So that no entry outlives its module."""
    folder = Path(npucmp.__file__).parent
    paths = [folder.joinpath(*name.split(".")) for name in NOT_OF_ONE_RANK]
    assert not [path for path in paths if not (path.is_dir() or path.with_suffix(".py").is_file())]


LIBRARIES = {"pandas", "jinja2", "h5py"}  # base packages that load where they are used


@pytest.mark.few(2)
@pytest.mark.parametrize("words, used", [("show {golden}", ""), ("check {golden}", ""), ("overflow {golden}", ""),
                                         ("compare {target} {golden} -o {out}", "jinja2")])  # fmt: skip
def test_a_command_loads_the_libraries_that_it_uses(tmp_path, words, used):
    """Each a base package; jinja2 makes the page, pandas reads tables back, h5py reads HDF5."""
    names = words.format(target=TARGET, golden=GOLDEN, out=tmp_path / "report").split()
    assert {name.split(".")[0] for name in modules_of(*names)[0]} & LIBRARIES == {*used.split()}


def test_the_help_loads_no_command():
    loaded, own = modules_of("--help")
    assert own == {"", "cli", "errors", "presenter", "version"}
    assert not {name.split(".")[0] for name in loaded} & {"numpy", "torch", *HEAVY}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The comparison of a sample with two suspects, and the folder that the command makes of the same."""
    folder = tmp_path_factory.mktemp("library") / "report"
    CliRunner().invoke(group, ["compare", str(STEPS / "target"), str(STEPS / "golden"), "-q", "-o", str(folder)])
    return npucmp.compare(STEPS / "target", STEPS / "golden"), folder


def test_reports_at_hand_and_reports_in_folders_are_held_against_each_other(found):
    report, folder = found
    clean = npucmp.compare(STEPS / "golden", STEPS / "golden")
    for before, after, status in ((folder, report, 0), (report, folder, 0), (clean, folder, 1), (folder, clean, 0)):
        held = npucmp.diff(before, after)
        assert (held.exit_status, len(held.new), len(held.worse)) == (status, 2 * status, 16 * status)
        assert len(held.same) == (0 if clean in (before, after) else 2)
    assert held.verdict == "FIXED" and len(held.gone) == 2


def test_what_has_lost_its_partner_is_new_where_the_later_result_is_strict(tmp_path):
    """As with --baseline and --strict."""
    whole, some = npucmp.compare(GOLDEN, GOLDEN), without("Functional.softmax.1.forward", tmp_path / "some")
    for strict in (True, False):
        held = npucmp.diff(whole, npucmp.compare(some, GOLDEN, strict=strict))
        assert {one.key.op for one in held.new} == ({"Functional.softmax.1.forward"} if strict else set())


def without(name, folder):
    """The sample without one of its operators."""
    folder.mkdir()
    told = json.loads(next(GOLDEN.rglob("dump.json")).read_text())
    del told["data"][name]
    (folder / "dump.json").write_text(json.dumps({**told, "dump_data_dir": None}))
    (folder / "dump_tensor_data").symlink_to(next(GOLDEN.rglob("dump_tensor_data")))
    return folder


def test_a_ticket_is_that_of_the_command(found, tmp_path):
    _, folder = found
    for name in ("t.md", "t.zip"):
        CliRunner().invoke(group, ["ticket", str(folder), "-o", str(tmp_path / name), "--place", "2"])
        names = npucmp.write_ticket(npucmp.ticket(folder, place=2), tmp_path / f"own.{name[2:]}")
        assert (tmp_path / name).read_bytes() == (tmp_path / f"own.{name[2:]}").read_bytes()
    with zipfile.ZipFile(tmp_path / "t.zip") as archive:
        assert archive.namelist() == names and "tensors.csv" in names
    for place in (0, -1, 3):
        with pytest.raises(UsageError, match=f"has 2 suspects, none at place {place}"):
            npucmp.ticket(folder, place=place)
    with pytest.raises(UsageError, match=r"t\.pdf: the name must end in \.md or \.zip"):
        npucmp.write_ticket(npucmp.ticket(folder), "t.pdf")


def test_a_dump_is_shown():
    shown = npucmp.show(TARGET, pattern="*softmax.1.forward", slot="output:0", at=[3, "0,0,4"])
    ((run, ((operator, (seen,)),)),) = shown.runs
    assert run.path.startswith(str(TARGET)) and operator.name == "Functional.softmax.1.forward"
    values = npucmp.load(TARGET, operator.name, "output:0")
    assert [value for _, value in seen.peek.elements] == [values.flat[3], values[0, 0, 4]]
    assert seen.measurement.moments.target.maximum == values.max() and not shown.notes
    with pytest.raises(UsageError, match="a pattern is given by its name"):
        npucmp.show(TARGET, "*softmax*")
    with pytest.raises(UsageError, match="need a PATTERN"):
        npucmp.show(TARGET, values=True)


def test_questions_formats_and_rules():
    run, lacks = npucmp.fit("overflow", TARGET, step=0)
    assert (run.format, lacks) == ("msprobe", [])
    with pytest.raises(UsageError, match="no question 'overfow'; nearest: overflow"):
        npucmp.fit("overfow", TARGET)
    assert {tree.format for producer in npucmp.formats() for tree in producer.trees} == {*FORMATS}
    assert (
        "weight.zero" in {rule.name for rule in npucmp.check_rules()} and len({one.name for one in npucmp.RULES}) > 20
    )


def test_files_beside_a_report(found, tmp_path):
    report, folder = found
    assert npucmp.write_junit(report, tmp_path / "new" / "junit.xml").read_text().count("<failure") == 1
    with pytest.raises(DumpError, match="not written"):
        npucmp.write_junit(report, folder / "roots.csv" / "junit.xml")
    files = npucmp.write_reports(named("op"), tmp_path / "out", metrics="gain, snr", parts=True)
    assert "tensors-0-0.csv" in {file.name for file in files}
    assert (tmp_path / "out/tensors-0-0.csv").read_text().partition("\n")[0].endswith(",gain,snr")
    with pytest.raises(UsageError, match="no metric 'gian'; nearest: gain"):
        npucmp.write_reports(report, tmp_path / "never", metrics=["gian"])
    assert not (tmp_path / "never").exists()


def test_a_result_as_its_summary(found):
    report, folder = found
    summary = json.loads((folder / "summary.json").read_text())
    told = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    apart = ("argv", "seconds", "files", "next")
    assert {**told, **{name: summary[name] for name in apart}} == summary


def test_one_report_is_not_merged_with_letters(found):
    for wrong in (found[1], str(found[1]), [found[1]], [found[1], found[1]], []):
        with pytest.raises(UsageError, match="merge needs the folders of several different reports"):
            npucmp.merge(wrong)


def test_the_page_names_all_functions():
    page = (Path(__file__).parent.parent / "docs" / "library.md").read_text(encoding="utf-8")
    functions = [name for name in npucmp.__all__ if inspect.isfunction(getattr(npucmp, name))]
    assert len(functions) > 15 and not [name for name in functions if f"npucmp.{name}(" not in page]


@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("bound", [-1, -1e-9, float("nan")])
def test_a_bound_below_zero_is_refused_as_on_the_command_line(name, bound):
    with pytest.raises(UsageError, match=rf"{name} is {bound!r}, it must be a number from 0"):
        npucmp.compare(TARGET, GOLDEN, **{name: bound})
    if bound != bound:
        return  # click lets it pass, and cli.main prints the UsageError
    got = CliRunner().invoke(group, ["compare", str(TARGET), str(GOLDEN), f"--{name}", str(bound)])
    assert got.exit_code == 2 and f"--{name}" in got.output


def test_the_version_is_that_of_the_changelog():
    got = CliRunner().invoke(group, ["--version"])
    assert got.output.split()[:2] == ["npucmp", "0.2.0.dev0"] == ["npucmp", npucmp.__version__]
    changelog = Path(__file__).parent.parent / "CHANGELOG.md"
    first = next(line for line in changelog.read_text(encoding="utf-8").splitlines() if line.startswith("## "))
    assert first.split()[1] == npucmp.__version__
