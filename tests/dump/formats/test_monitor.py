"""Tables of msprobe's training monitor. The lines below are as mindstudio-probe 26.2 wrote them of a small network."""

from __future__ import annotations

import math

import pytest

import npucmp
from npucmp import Limits, open_runs
from npucmp.dump.formats import monitor
from npucmp.dump.limits import ReadContext
from npucmp.errors import DumpError
from npucmp.model import Statistics
from tests.contracts import FormatContract

HEAD = "vpp_stage,name,step,min,max,mean,norm,nans,shape,dtype"
MICRO = HEAD.replace("step,", "step,micro_step,")
TABLES = {
    "param_origin_0-1.csv": f"""{HEAD}
0,0.weight,0,-0.249382,0.249919,-0.001425,3.301201,0,"[32, 16]",torch.float32
0,0.bias,0,-0.202667,0.249573,-0.028549,0.731831,0,[32],torch.float32
0,0.weight,1,-0.248382,0.250904,-0.00132,3.302253,0,"[32, 16]",torch.float32
""",
    "grad_reduced_0-1.csv": f"""{HEAD}
0,0.weight,0,-0.096768,0.068547,-0.000902,0.456878,0,"[32, 16]",torch.float32
0,0.bias,0,-0.030574,0.054745,0.000205,1e-05,0,[32],torch.float32
""",
    "actv_0-1.csv": f"""{MICRO}
0,0.input,0,0,-3.945513,3.362808,0.020165,33.275134,0.0,"[64, 16]",torch.float32
0,0.output,0,0,-2.029606,1.895764,-0.037654,28.065207,0.0,"[64, 32]",torch.bfloat16
""",
    "actv_grad_0-1.csv": f"""{MICRO}
0,.input,0,0,nan,nan,nan,nan,nan,nan,nan
0,.output,0,0,-0.014354,0.009531,0.0,0.113366,0.0,"[64, 4]",torch.float32
0,0.input_grad_1,0,0,-0.014354,0.009531,0.0,0.113366,0.0,"[64, 4]",torch.float32
""",
}


def write_monitor(folder, tables=TABLES, rank=0):
    place = folder / f"Nov22_19-23-13-rank{rank}-1ace2694"
    place.mkdir(parents=True)
    for name, text in tables.items():
        (place / name).write_text(text)
    return folder


def first(folder):
    return next(iter(open_runs(folder)))


class TestMonitor(FormatContract):
    module = monitor

    def write(self, folder):
        return write_monitor(
            folder,
            {
                name: "".join(line for line in text.splitlines(True) if ",1,-" not in line)
                for name, text in TABLES.items()
            },
        )


def test_steps_and_ranks_are_runs(tmp_path):
    write_monitor(tmp_path, rank=0)
    write_monitor(tmp_path, rank=12)
    assert [(run.step, run.rank) for run in open_runs(tmp_path)] == [(0, 0), (0, 12), (1, 0), (1, 12)]
    assert open_runs(next(tmp_path.rglob("*rank12*")))[0].rank == 12
    assert [run.step for run in open_runs(next(tmp_path.rglob("param*")))] == [0, 1]


def test_parameters_first_then_activations_then_gradients(tmp_path):
    found = [
        (op.name, op.phase, tensor.slot) for op in first(write_monitor(tmp_path)).operators for tensor in op.tensors
    ]
    assert found == [
        ("param_origin.0:0.weight", "", "param:weight"),
        ("param_origin.0:0.bias", "", "param:bias"),
        ("actv.0:0.micro_step0", "", "input:0"),
        ("actv.0:0.micro_step0", "", "output:0"),
        ("actv_grad.0:.micro_step0", "backward", "output:0"),
        ("actv_grad.0:0.micro_step0", "backward", "output:1"),
        ("grad_reduced.0:0.weight", "backward", "grad:weight"),
        ("grad_reduced.0:0.bias", "backward", "grad:bias"),
    ]


def test_figures_shape_and_type(tmp_path):
    weight, *_, bias = (one for op in first(write_monitor(tmp_path)).operators for one in op.tensors)
    assert weight.statistics == Statistics(0.249919, -0.249382, -0.001425, 3.301201)
    assert (weight.dtype, weight.shape, weight.rounding) == ("float32", (32, 16), 0.5e-6)
    assert (bias.statistics.norm, bias.rounding) == (1e-5, 0.5e-6)


@pytest.mark.parametrize(
    "figures, rounding",
    [
        ("-0.5,0.5,0.25,1.5", 0.5e-2), ("-1,1,0,2", 0.5), ("-1.5e-05,1.0,0.0,2.0", 0.5e-6),
        ("1e+20,1e+20,1e+20,1e+20", 0.0),
        ("-0.2493820935487747,0.25,0.0,1.5", 0.0), ("nan,nan,nan,nan", 0.5),
    ],
)  # fmt: skip
def test_how_far_figures_were_rounded(tmp_path, figures, rounding):
    write_monitor(tmp_path, {"grad_0-0.csv": f"{HEAD}\n0,a,0,{figures},0,[4],torch.float32\n"})
    assert first(tmp_path).operators[0].tensors[0].rounding == pytest.approx(rounding)


def test_a_table_without_shape_and_type_and_one_of_monitor_v2(tmp_path):
    (tmp_path / "rank_3").mkdir()
    head = "vpp_stage,step,module_name,scope,micro_step,min,max,norm\n"
    (tmp_path / "rank_3" / "weight_grad_step0-9.csv").write_text(f"{head}0,7,fc.weight,reduced,1,-0.5,0.5,2.0\n")
    (run,) = open_runs(tmp_path)
    (operator,) = run.operators
    assert (run.step, run.rank, operator.name) == (7, 3, "weight_grad.reduced.0:fc.weight.micro_step1")
    (tensor,) = operator.tensors
    assert (tensor.slot, tensor.dtype, tensor.shape) == ("grad:weight", "bfloat16", ())
    assert tensor.statistics == Statistics(0.5, -0.5, None, 2.0)


def test_rows_that_are_none_and_rows_that_stand_twice_are_told(tmp_path):
    row = "0,a,0,-1.0,1.0,0.0,2.0,0,[4],torch.float32\n"
    bad = "0,,0,1,1,1,1,0,[4],torch.float32\n0,a,first,1,1,1,1,0,[4],torch.float32\n\n0\n"
    write_monitor(tmp_path, {"grad_0-0.csv": HEAD + "\n" + row + bad + row.replace("1.0", "3.0")})
    run = first(tmp_path)
    assert [one.statistics.max for op in run.operators for one in op.tensors] == [3.0]
    assert any("3 rows name no tensor" in note for note in run.notes)
    assert any("1 rows of step 0 occur twice" in note for note in run.notes)


@pytest.mark.parametrize("shape", ["[99999999999999999999]", "[4" + ", 1" * 70 + "]"])
def test_shapes_that_none_can_have_are_unreadable_rows(tmp_path, shape):
    write_monitor(tmp_path, {"grad_0-0.csv": f'{HEAD}\n0,a,0,1,1,1,1,0,"{shape}",torch.float32\n'})
    assert "the table gives it the shape" in first(tmp_path).operators[0].tensors[0].problem


def test_a_table_that_is_too_large_is_told(tmp_path):
    with pytest.raises(DumpError, match="statistics_bytes"):
        open_runs(write_monitor(tmp_path), context=ReadContext(Limits(statistics_bytes=10)))


def test_another_table_is_none(tmp_path):
    (tmp_path / "a_0-1.csv").write_text("step,loss\n0,1.0\n")
    assert monitor.sniff(tmp_path) is monitor.sniff(tmp_path / "a_0-1.csv") is False


def changed(was, now):
    return {name: text.replace(was, now) for name, text in TABLES.items()}


def test_a_parameter_that_differs_from_the_start_comes_first(tmp_path):
    golden = write_monitor(tmp_path / "golden")
    scaled = changed("-0.249382,0.249919,-0.001425,3.301201", "-0.261851,0.262415,-0.001496,3.466261")
    report = npucmp.compare(write_monitor(tmp_path / "target", scaled), golden)
    assert (report.roots[0].pair.operator.name, report.exit_status) == ("param_origin.0:0.weight", 1)
    assert report.roots[0].evidence and report.findings[0].measurement.bound == pytest.approx(0.05, rel=1e-3)


def test_what_rounding_to_decimals_makes_is_no_difference(tmp_path):
    """A norm of ten units of the last decimal, of which either side may be half a unit off."""
    golden = write_monitor(tmp_path / "golden")
    for now, bound in (("1.1e-05", 0.0), ("1.3e-05", 2.0 / 11.0)):
        other = write_monitor(tmp_path / now, changed("0.000205,1e-05", f"0.000205,{now}"))
        found = {one.pair.slot: one.measurement.bound for one in npucmp.compare(other, golden, step=0).findings}
        assert found["grad:bias"] == pytest.approx(bound)


def test_nan_on_one_side(tmp_path):
    golden = write_monitor(tmp_path / "golden")
    other = write_monitor(
        tmp_path / "target", changed("-0.096768,0.068547,-0.000902,0.456878,0", "nan,nan,nan,nan,512")
    )
    report = npucmp.compare(other, golden)
    assert [one.pair.slot for one in report.findings if one.verdict.value == "nonfinite"] == ["grad:weight"]
    assert math.isnan(report.findings[6].measurement.statistics[0].norm)
    assert npucmp.overflow(other).events[0].operator.name == "grad_reduced.0:0.weight"
