"""The command line as a user and a script meet it: exit status, one-line errors, files."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from npucmp import RULES
from npucmp.dump.catalogue import PRODUCERS, format_lines
from npucmp.dump.formats import FORMATS
from tests.command import npucmp as run
from tests.synthetic import chain, write_run

SAMPLES = Path(__file__).parent.parent / "sample_dumps"
SOFTMAX = SAMPLES / "msprobe_softmax" / "target", SAMPLES / "msprobe_softmax" / "golden"
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
CLEAN = SAMPLES / "msprobe_clean" / "target", SAMPLES / "msprobe_clean" / "golden"
STEPS = SAMPLES / "msprobe_two_ranks" / "target", SAMPLES / "msprobe_two_ranks" / "golden"
TENSORS = next(CLEAN[0].glob("step0/*/dump_tensor_data"))
README = SAMPLES.parent / "README.md"


def rows(file):
    with open(file, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("words", ["--help", "--version", "compare --help", "check --help", "replay --help"])
def test_help_imports_nothing_heavy(words):
    trace = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "npucmp", *words.split()], capture_output=True, text=True
    )
    loaded = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in trace.stderr.splitlines()}
    assert trace.returncode == 0
    assert "npucmp" in loaded
    assert not loaded & {"numpy", "pandas", "h5py", "ml_dtypes", "tqdm", "yaml"}


@pytest.mark.parametrize("command", ["compare", "check", "overflow", "fusion-diff", "rerun-diff", "show", "formats"])
def test_every_command_has_help(command):
    got = run(command, "--help")
    assert got.returncode == 0
    assert "Usage: " in got.stdout


def test_the_last_options_in_the_help_of_compare_are_options():
    last = run("compare", "--help").stdout.split("Other:")[-1].split("\n  ")
    assert [line.split()[0] for line in last if line.strip()] == ["-h,"]


def test_a_plan_is_printed_without_a_comparison(tmp_path):
    got = run("compare", *CLEAN, "--dry-run", cwd=tmp_path)
    assert got.returncode == 0 and "tensors to compare" in got.stdout and not list(tmp_path.iterdir())
    assert run("compare", CLEAN[0], SAMPLES / "cann_fused_conv" / "golden", "--dry-run").returncode == 2
    assert "leave out" in run("compare", *CLEAN, "--dry-run", "--json").stderr


def test_compare_writes_its_files(tmp_path):
    got = run("compare", *SOFTMAX, "-o", tmp_path / "out")
    assert (got.returncode, got.stderr) == (1, "")
    written = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert written == ["report.html", "roots.csv", "summary.json", "tensors.csv", "worst.csv"]
    first = rows(tmp_path / "out" / "roots.csv")[0]
    assert (first["place"], first["op"], first["cause"]) == ("1", "Functional.softmax.1.forward", "BORN")
    assert first["op"] in got.stdout


def test_columns_are_those_of_the_contract(tmp_path):
    run("compare", *SOFTMAX, "-o", tmp_path)
    with open(tmp_path / "tensors.csv", encoding="utf-8") as stream:
        assert stream.readline().strip() == (
            "step,rank,order,op,op_type,phase,slot,verdict,because,matched_by,match_confidence,target_op,golden_op,"
            "target_tensor,golden_tensor,target_dtype,golden_dtype,target_shape,golden_shape,target_layout,golden_layout,"
            "elements,cosine,rel_l2,max_abs_err,max_abs_index,max_rel_err,max_rel_index,mean_abs_err,mean_rel_err,rmse,"
            "err_1e3_ratio,err_5e3_ratio,allclose,mismatch_ratio,max_ulp,exact_ratio,nonfinite_mismatch,target_nan,"
            "target_inf,golden_nan,golden_inf,target_min,target_max,target_mean,target_l2,golden_min,golden_max,"
            "golden_mean,golden_l2,stack,cause,limit,rule,explained_by,explained_limit,masked,max_abs_at,max_rel_at,"
            "golden_slot,relation,match_reason,estimator"
        )
    with open(tmp_path / "roots.csv", encoding="utf-8") as stream:
        assert stream.readline().strip() == (
            "place,step,rank,order,op,op_type,phase,cause,slot,metric,value,limit,input_error,output_error,growth,"
            "evidence,stack,target_op,golden_op,rule,golden_slot,relation,ranks,collective,request,position"
        )


def test_summary_agrees_with_the_tables(tmp_path):
    got = run("compare", *SOFTMAX, "-o", tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    tensors = rows(tmp_path / "tensors.csv")
    assert summary["exit_status"] == got.returncode == 1
    assert sum(summary["verdicts"].values()) == len(tensors)
    assert summary["roots"][0]["op"] == rows(tmp_path / "roots.csv")[0]["op"]
    assert summary["bytes_read"] > 0
    assert summary["argv"][-3:] == [str(SOFTMAX[1]), "-o", str(tmp_path)]


def test_a_column_on_request_is_appended(tmp_path):
    assert run("compare", *SOFTMAX, "-o", tmp_path, "--metrics", "snr,cosine").returncode == 1
    row = next(
        row
        for row in rows(tmp_path / "tensors.csv")
        if row["op"] == "Functional.softmax.1.forward" and row["slot"] == "output:0"
    )
    assert float(row["snr"]) == pytest.approx(-20 * np.log10(float(row["rel_l2"])))


def test_quiet_prints_nothing():
    got = run("compare", *CLEAN, "-q")
    assert (got.returncode, got.stdout, got.stderr) == (0, "", "")


@pytest.mark.few(2)
@pytest.mark.parametrize("paths, status", [(CLEAN, 0), (SOFTMAX, 1)], ids=["agrees", "differs"])
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_changes_no_answer(tmp_path, paths, status, closed):
    words = ["compare", *paths, "-o", tmp_path]
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "npucmp", *map(str, words)]
    got = subprocess.run(shell, capture_output=True, text=True, timeout=120)
    assert (got.returncode, got.stderr) == (status, "")
    assert json.loads((tmp_path / "summary.json").read_text())["exit_status"] == status


@pytest.mark.few(3)
@pytest.mark.parametrize("where", [">&-", pytest.param(">/dev/full", marks=FULL)])
@pytest.mark.parametrize(
    "words", [("compare", *CLEAN), ("compare", *SOFTMAX), ("overflow", CLEAN[0]), ("show", CLEAN[0]), ("formats",)]
)
def test_an_answer_that_nobody_is_told_is_status_2(words, where):
    """1 would say that the dumps differ, 0 that they agree; nothing else was asked to keep the answer."""
    shell = ["sh", "-c", f'exec "$@" {where}', "sh", sys.executable, "-m", "npucmp", *map(str, words)]
    got = subprocess.run(shell, capture_output=True, text=True, timeout=120)
    assert got.returncode == 2
    assert got.stderr.count("\n") == 1 and got.stderr.startswith("npucmp: ")


@pytest.mark.few(2)
@FULL
@pytest.mark.parametrize(
    "words", [("compare", "/nowhere", CLEAN[0]), ("compare", "--rtool", "0")], ids=["error", "usage"]
)
@pytest.mark.parametrize("where", ["2>/dev/full", ">/dev/full 2>/dev/full"])
def test_an_error_that_nobody_is_told_is_status_2(words, where):
    shell = ["sh", "-c", f'exec "$@" {where}', "sh", sys.executable, "-m", "npucmp", *map(str, words)]
    assert subprocess.run(shell, timeout=120, stdout=subprocess.DEVNULL).returncode == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("paths, status", [(CLEAN, 0), (SOFTMAX, 1)], ids=["agrees", "differs"])
def test_who_wants_the_status_alone_may_close_the_screen(paths, status):
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "npucmp", "compare", *map(str, paths), "-q"]
    assert subprocess.run(shell, capture_output=True, timeout=120).returncode == status


def test_results_do_not_depend_on_jobs(tmp_path):
    for jobs in (1, 3):
        run("compare", *SOFTMAX, "-q", "--jobs", jobs, "-o", tmp_path / str(jobs))
    for name in ("tensors.csv", "roots.csv"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes()


@pytest.fixture
def broken(tmp_path):
    """Folders that are no dump, by what is wrong with them."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("hello")
    half = tmp_path / "half" / "step0" / "rank0"
    half.mkdir(parents=True)
    text = next((SOFTMAX[0] / "step0").glob("*/dump.json")).read_text()
    (half / "dump.json").write_text(text[: len(text) // 2])
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "dump.json").write_text("[1, 2]")
    write_run(tmp_path / "network", {"Torch.conv.0.forward": {"in": [np.ones((3, 5, 7))], "out": [np.zeros((3, 2))]}})
    write_run(tmp_path / "nothing", {})
    (tmp_path / "above" / "_").mkdir(parents=True)
    for name in "dcba":
        (tmp_path / "above" / name).mkdir()
        np.save(tmp_path / "above" / name / "neg.npy", np.ones(2))
    return tmp_path


@pytest.mark.few(5)
@pytest.mark.parametrize(
    "name, words",
    [
        ("absent", "no such file or folder"),
        ("empty", "the folder is empty"),
        ("other", "no dump is recognised here; `npucmp formats` lists"),
        ("half", "dump.json: is not complete JSON"),
        ("list", "no msprobe dump"),
        ("network", "look like different networks"),
        ("nothing", "no operator was dumped"),
    ],
)
@pytest.mark.parametrize("side", [0, 1])
def test_a_bad_path_is_one_line_and_status_2(broken, name, words, side):
    paths = [SOFTMAX[0], SOFTMAX[1]]
    paths[side] = broken / name
    got = run("compare", *paths)
    assert (got.returncode, got.stdout) == (2, "")
    assert got.stderr.count("\n") == 1
    assert words in got.stderr
    assert str(broken / name) in got.stderr


def test_a_path_near_a_dump_is_told_from_it(broken, tmp_path):
    """A slip of the name, a file beside the records, a report where a dump is wanted, a file where its folder is."""
    report = tmp_path / "report"
    assert run("compare", *SOFTMAX, "-q", "-o", report).returncode == 1
    [record] = Path(SOFTMAX[0]).rglob("dump.json")
    for words, says in [
        (("show", Path(SOFTMAX[0]).with_name("targte")), f"; nearest: {Path(SOFTMAX[0])}"),
        (("show", record.with_name("stack.json")), f"is a file of a dump; pass {record}"),
        (
            ("compare", report, SOFTMAX[1]),
            f"{report}: is a report of npucmp, not a dump; npucmp diff, ticket and merge",
        ),
        (("diff", report / "report.html", report), f"is a file of a report; give its folder, {report}"),
        (("extract", SOFTMAX[0], "*softmax.0*", "-o", tmp_path / "case"), "nearest: Functional.softmax.0.forward, "),
    ]:
        got = run(*words)
        assert (got.returncode, got.stdout, got.stderr.count("\n")) == (2, "", 1), words
        assert says in got.stderr


def test_dumps_below_a_path_are_named(broken):
    got = run("compare", broken / "above", broken / "above")
    a, b, c = (broken / "above" / name for name in "abc")
    assert got.stderr.endswith(f"no dump is recognised here, but in subfolders: pass {a} or {b} or {c}\n")


def test_show_takes_a_part_of_a_name():
    got = run("show", CLEAN[0], "softmax")
    assert got.returncode == 0 and "softmax" in got.stdout
    assert "note: no operator is named 'softmax'; the operators whose names contain it are shown" in got.stdout
    assert got.stdout.partition("note: ")[0] == run("show", CLEAN[0], "*softmax*").stdout


@pytest.mark.few(8)
@pytest.mark.parametrize(
    "words, says",
    [
        (["compare"], "Missing argument"),
        (["compare", *CLEAN, "--metrics", "cosin"], "nearest: cosine"),
        (["compare", *CLEAN, "--format", "nope"], "npucmp reads msprobe, cann, mindspore, tfdbg, hdf5, "),
        (["compare", *CLEAN, "--step", "7"], "has no step 7; it holds step 0"),
        (["compare", *CLEAN, "--include", "sofmax"], "no operator fits --include 'sofmax'; nearest: *softmax*"),
        (["compare", *CLEAN, "--include", "softmax"], "no operator fits --include 'softmax'; nearest: *softmax*"),
        (["compare", *CLEAN, "--include", "*softmax*", "--exclude", "*"], "no tensor passes"),
        (["overflow", CLEAN[0], "--include", "sofmax"], "nearest: *softmax*"),
        (["rerun-diff", *CLEAN, "--include", "sofmax"], "nearest: *softmax*"),
        (["show", CLEAN[0], "--include", "sofmax"], "nearest: *softmax*"),
        (["show", CLEAN[0], "*sofmax*"], "no operator fits '*sofmax*'; nearest: *softmax*"),
        (["show", CLEAN[0], "*softmax*", "--step", "3"], "has no step 3; it holds step 0"),
        *(
            ([*command, "--rank", "3"], "has no rank 3; it holds step 0 (a run without that number counts as 0)")
            for command in (["compare", *CLEAN], ["show", CLEAN[0]], ["overflow", CLEAN[0]], ["rerun-diff", *CLEAN])
        ),
        (["compare", *CLEAN, "--tolerances", README], "README.md: not a table of tolerances: it has no column limit"),
        (["compare", *CLEAN, "--format", "npy"], "contains no operator of a npy dump; without --format it"),
        (["show", TENSORS], f"pass the folder with dump.json, {TENSORS.parent}"),
        (["compare", TENSORS, CLEAN[1]], f"pass the folder with dump.json, {TENSORS.parent}"),
        (["compare", STEPS[0] / "step0", STEPS[1] / "step1"], "; pair them by --pair step0=step1, "),
        (["compare", *CLEAN, "--mapping", "/absent.yaml"], "/absent.yaml"),
        (["compare", *CLEAN, "--tolerances", "/absent.csv"], "/absent.csv"),
        (["show", CLEAN[0], "nothing*"], "no operator fits"),
        (["nonsense"], "No such command"),
    ],
)
def test_wrong_words_are_told(words, says):
    got = run(*words)
    assert got.returncode == 2
    assert says in got.stderr
    assert "Traceback" not in got.stderr


def test_an_unreadable_tensor_is_a_row_and_status_2(tmp_path):
    target, golden = write_run(tmp_path / "target", chain()), write_run(tmp_path / "golden", chain())
    file = next(target.glob("step0/*/dump_tensor_data/Functional.linear.2.forward.output.0.npy"))
    file.write_bytes(file.read_bytes()[:-10])
    got = run("compare", target, golden, "-o", tmp_path / "out")
    bad = [row for row in rows(tmp_path / "out" / "tensors.csv") if row["verdict"] != "match"]
    assert got.returncode == 2
    assert str(file) in got.stdout  # a user wants to look at it
    assert got.stdout.count(file.name) == 1, "a file is named once"
    assert [(row["op"], row["slot"], row["verdict"]) for row in bad] == [
        ("Functional.linear.2.forward", "output:0", "unreadable")
    ]
    assert bad[0]["because"].startswith("target: ")
    assert "unreadable" in got.stdout


def test_tensors_without_partner_are_told_beside_what_diverged(tmp_path):
    """Both runs have every operator; the share of elements alone would not say what is missing."""
    fewer = chain()
    last = [*fewer][-1]
    fewer[last] = {**fewer[last], "in": [one + 1 for one in fewer[last]["in"][:1]]}
    whole = chain()
    whole[last] = {**whole[last], "in": [*whole[last]["in"][:1], np.ones(3, np.float32)]}
    got = run("compare", write_run(tmp_path / "target", fewer), write_run(tmp_path / "golden", whole))
    assert got.returncode == 1 and "· 0 only in target, 0 only in golden ·" in got.stdout
    assert ", 1 tensor without a partner.   " in got.stdout.splitlines()[-1]


def test_what_nobody_knows_of_several_operators_is_said_once():
    paths = [SAMPLES / "npy_batch_norm" / side for side in ("target", "golden")]
    sentence = "the inputs were not dumped or cannot be compared"
    got, verbose = run("compare", *paths).stdout, run("compare", *paths, "-v").stdout
    assert f"     places 1-3: {sentence}\n" in got and got.count(sentence) == 1
    assert verbose.count(sentence) == 3
    assert "note: only outputs were dumped: dump inputs too, or pass a graph of the network with --graph" in got


def test_steps_and_ranks_are_paired_by_number(tmp_path):
    for rank in (0, 1):
        write_run(tmp_path / "target", chain(), step=0, rank=rank)
        write_run(tmp_path / "golden", chain({2: 1.05} if rank else {}), step=0, rank=rank)
    write_run(tmp_path / "target", chain(), step=1, rank=0)
    got = run("compare", tmp_path / "target", tmp_path / "golden", "-o", tmp_path / "out")
    assert got.returncode == 1
    assert {(row["step"], row["rank"]) for row in rows(tmp_path / "out" / "tensors.csv")} == {("0", "0"), ("0", "1")}
    assert {row["rank"] for row in rows(tmp_path / "out" / "roots.csv")} == {"1"}
    assert "only in target: step 1 rank 0" in got.stdout


def test_runs_without_a_partner_are_open_on_the_golden_side_alone(tmp_path):
    for step in range(3):
        write_run(tmp_path / "golden", chain(), step=step)
    for step in range(2):
        write_run(tmp_path / "target", chain(), step=step)
    got = run("compare", tmp_path / "target", tmp_path / "golden")
    assert got.returncode == 2 and "only in golden: step 2" in got.stdout
    assert "UNDECIDED: 36 tensors agree; 1 golden step or rank has no partner, step 2" in got.stdout
    got = run("compare", tmp_path / "golden", tmp_path / "target")
    assert got.returncode == 0 and "only in target: step 2" in got.stdout
    assert "AGREES: 36 tensors compared, none diverged, 1 run without a partner." in got.stdout


def headings(shown):
    return sum(line.startswith("target  ") for line in shown.splitlines())


def test_what_several_runs_have_in_common_is_told_once(tmp_path):
    for step in range(4):
        write_run(tmp_path / "target", chain(), step=step)
        write_run(tmp_path / "golden", chain({2: 1.05} if step > 1 else {}), step=step)
    shown = run("compare", tmp_path / "target", tmp_path / "golden").stdout
    assert headings(shown) == shown.count("\naligned ") == shown.count("BORN") == 1
    assert shown.index("The error begins at step 2, operator Functional.linear.2.forward\n") < shown.index("BORN")
    assert "rank 0  ··1X\n" in shown and "also at step 3\n" in shown
    assert headings(run("compare", tmp_path / "target", tmp_path / "golden", "-v").stdout) == 1


def test_top_counts_over_all_runs(tmp_path):
    for step in range(4):
        write_run(tmp_path / "target", chain(), step=step)
        write_run(tmp_path / "golden", chain({step + 1: 1.05}), step=step)
    shown = run("compare", tmp_path / "target", tmp_path / "golden", "--top", "2").stdout
    assert shown.count("BORN") == 2 and "… and 2 more in roots.csv" in shown


def test_strict_minds_operators_without_partner(tmp_path):
    target = chain()
    target["Torch.abs.0.forward"] = {"in": [np.ones(3)], "out": [np.ones(3)]}
    paths = write_run(tmp_path / "target", target), write_run(tmp_path / "golden", chain())
    assert (run("compare", *paths, "-q").returncode, run("compare", *paths, "-q", "--strict").returncode) == (0, 1)


HOSTILE = "=cmd|'/c calc'!A1\x1b[31m\u202egnp.\n"


def test_names_from_dumps_stay_text(tmp_path):
    def named(factor):
        return {
            "Functional." + HOSTILE.replace("/", "") + ".0.forward": operator
            for operator in [chain({0: factor})["Functional.linear.0.forward"]]
        }

    target, golden = (
        write_hostile(tmp_path / side, named(factor)) for side, factor in (("target", 2.0), ("golden", 1.0))
    )
    got = run("compare", target, golden, "-o", tmp_path / "out")
    text = got.stdout + (tmp_path / "out" / "tensors.csv").read_text() + (tmp_path / "out" / "roots.csv").read_text()
    assert got.returncode == 1
    assert not set(text) & {"\x1b", "\u202e"}
    assert "\\x1b[31m\\u202e" in text


def write_hostile(folder, operators):
    """Like write_run, but file names stay harmless: the name is in dump.json."""
    ((name, operator),) = operators.items()
    write_run(folder, {"X.0.forward": operator})
    file = folder / "step0/proc1/dump.json"
    top = json.loads(file.read_text())
    top["data"] = {name: top["data"]["X.0.forward"]}
    file.write_text(json.dumps(top))
    return folder


def test_an_output_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    got = run("compare", *CLEAN, "-o", tmp_path / "file")
    assert got.returncode == 2
    assert got.stderr.count("\n") == 1
    assert str(tmp_path / "file") in got.stderr


def test_show_tells_statistics_and_arguments():
    got = run("show", SOFTMAX[1], "*softmax.1.forward")
    assert got.returncode == 0
    assert "input:dim = -1" in got.stdout
    assert "output:0 float32[2, 8, 8]  min " in got.stdout


def test_formats_lists_what_is_read_by_who_writes_it():
    lines = run("formats").stdout.splitlines()
    every = [line for one in PRODUCERS for line in (one.name, *(f"  {line}" for line in format_lines(one)))]
    assert lines[: lines.index("")] == every
    assert lines[-1].strip() == ", ".join(FORMATS)


def test_the_readme_shows_the_real_output():
    root = SAMPLES.parent
    readme = (root / "README.md").read_text(encoding="utf-8")
    shown = readme.split("```text\n")[1].split("```")[0]
    got = run("compare", "sample_dumps/msprobe_softmax/target", "sample_dumps/msprobe_softmax/golden", cwd=root).stdout
    without_time = [text.rsplit("   ", 1)[0] for text in (shown.strip(), got.strip())]
    assert without_time[0] == without_time[1]


def test_a_broken_rank_costs_only_itself(tmp_path):
    for rank in (0, 1):
        write_run(tmp_path / "target", chain(), rank=rank)
        write_run(tmp_path / "golden", chain(), rank=rank)
    file = tmp_path / "target/step0/rank1/dump.json"
    file.write_text(file.read_text()[:500])
    got = run("compare", tmp_path / "target", tmp_path / "golden", "-o", tmp_path / "out")
    assert got.returncode == 2
    assert "rank1/dump.json: is not complete JSON" in got.stdout
    assert {row["rank"] for row in rows(tmp_path / "out" / "tensors.csv")} == {"0"}


def test_a_collective_hands_on_the_error_of_another_rank(tmp_path):
    random = np.random.default_rng(3)
    x, w = random.standard_normal((4, 8)).astype(np.float32), random.standard_normal((8, 8)).astype(np.float32)

    def write(side, wrong):
        outputs = [x @ w * np.float32(1.5 if wrong and rank else 1.0) * (rank + 1) for rank in (0, 1)]
        for rank in (0, 1):
            operators = {
                "Functional.linear.0.forward": {"in": [x * np.float32(rank + 1), w], "out": [outputs[rank]]},
                "Distributed.all_reduce.0.forward": {"in": [outputs[rank]], "out": [outputs[0] + outputs[1]]},
            }
            write_run(tmp_path / side, operators, rank=rank)
        return tmp_path / side

    assert run("compare", write("target", True), write("golden", False), "-o", tmp_path / "out").returncode == 1
    got = [(row["place"], row["rank"], row["op"], row["cause"]) for row in rows(tmp_path / "out" / "roots.csv")]
    assert got[0] == ("1", "1", "Functional.linear.0.forward", "BORN")
    assert ("0", "Distributed.all_reduce.0.forward", "PROPAGATED") in [row[1:] for row in got]
    assert [row[0] for row in got] == [str(place) for place in range(1, len(got) + 1)]


def test_keywords_that_look_like_numbers_are_words(tmp_path):
    for side in ("target", "golden"):
        folder = write_run(tmp_path / side, chain())
        (file,) = folder.rglob("dump.json")
        top = json.loads(file.read_text())
        record = top["data"]["Functional.linear.1.forward"]
        record["input_kwargs"] = {"²": record["input_args"][0], "9" * 5000: record["input_args"][1]}
        file.write_text(json.dumps(top))
    assert run("compare", tmp_path / "target", tmp_path / "golden").returncode == 0


def test_the_rules_are_listed_with_their_evidence():
    got = run("compare", "--list-rules")
    head, _, listed = got.stdout.partition("\n\n")
    assert all(f"{kind}: " in head for kind in {rule.kind for rule in RULES}) and "--skip-rule NAME" in head
    lines = [line.split(maxsplit=2) for line in listed.splitlines()]
    assert got.returncode == 0 and [(kind, name) for kind, name, _ in lines] == [(r.kind, r.name) for r in RULES]
    assert all(len(why) > 20 for _, _, why in lines)


def test_a_rule_can_be_skipped_and_the_report_says_so(tmp_path):
    run("compare", *SOFTMAX, "-o", tmp_path / "a")
    got = run("compare", *SOFTMAX, "--skip-rule", "growth", "-v", "-o", tmp_path / "b")
    assert "judged without growth" in got.stdout
    first, second = (rows(tmp_path / name / "tensors.csv") for name in "ab")
    assert "growth" in {row["explained_by"] for row in first}
    assert "growth" not in {row["explained_by"] for row in second}
    assert len(rows(tmp_path / "b" / "roots.csv")) >= len(rows(tmp_path / "a" / "roots.csv"))


def test_no_rule_has_that_name():
    got = run("compare", *SOFTMAX, "--skip-rule", "growht")
    assert got.returncode == 2 and got.stderr == "npucmp: no rule 'growht'; nearest: growth\n"


def test_help_of_compare_begins_with_its_arguments_and_output_in_groups():
    text = run("compare", "--help").stdout
    lines = [line.split()[0] for line in text.splitlines()[1:] if line.strip()]
    assert lines[:4] == ["Arguments:", "TARGET", "GOLDEN", "-o,"]
    titles = [line for line in text.splitlines() if line.endswith(":") and line[0] != " " and "Exit" not in line]
    assert titles == [
        "Arguments:", "Output:", "Selection of runs, operators and names:", "Judgement:", "Execution:", "Other:",
    ]  # fmt: skip
    other = text[text.index("\nOther:") :]
    assert "--help" in other and other.count("\n  -") == 1  # every option stands in a group
    for option in ("--rtol", "--jobs", "--include", "--json", "--list-rules"):
        assert text.count(f"\n  {option}") == 1
