"""The product's acceptance test: every sample's planted operator comes first, and every run agrees with itself."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

import npucmp
from tests.reports import screen

SAMPLES = Path(__file__).parent.parent / "sample_dumps"
DATA = Path(__file__).parent.parent.parent / "shared" / "data"
SHARED = DATA / "msprobe"

LENET = "Default_network-WithLossCell__backbone-Net_"
LAYERS = "Module.model.layers"
FAULTED = [  # (sample, operator, cause, slot, words of the evidence)
    ("msprobe_softmax", "Functional.softmax.1.forward", "BORN", "output:0", "inputs agree (bit for bit)"),
    ("msprobe_extra_operator", "Functional.layer_norm.1.forward", "BORN", "output:0", "argument input:4 (eps) is 0.01"),
    ("msprobe_uncaptured", "Functional.linear.9.forward", "GAP", "input:0", "Functional.linear.8.forward output:0"),
    ("msprobe_backward", "Functional.linear.8.backward", "GAP", "input:0", "1.01 times the golden"),
    ("msprobe_two_ranks", "Functional.linear.1.forward", "BORN", "output:0", "inputs agree (bit for bit)"),
    ("msprobe_tensor_parallel", "Tensor.__add__.4.forward", "GAP", "input:0", "a reduction is missing before it"),
    ("weights_megatron", "model.layers.1.mlp.gate_proj.weight", "GAP", "output:0",
     "holds the weights of model.layers.1.mlp.up_proj"),
    ("msprobe_tokens", f"{LAYERS}.1.self_attn.core.Attention.forward.0", "BORN", "output:0",
     "request 1 differs from position 3 on"),
    ("msprobe_steps", f"{LAYERS}.1.linear.Linear.forward.0", "BORN", "output:0", "inputs agree (bit for bit)"),
    ("npy_batch_norm", "resnet_block_1_bn2_FusedBatchNormV3", "UNKNOWN", "output:0", "inputs were not dumped"),
    ("tfdbg_batch_norm", "resnet_block_1_bn2_FusedBatchNormV3", "BORN", "output:0", "inputs agree (bit for bit)"),
    ("cann_fused_conv", "net/block_0/b/Conv2D", "BORN", "output:0", "net/block_0/b/bn/FusedBatchNormV3 by Conv"),
    (
        "cann_fusion_pass", "net/block_0/addnet/block_0/Relu", "BORN", "output:0",
        "net/block_0/Relu by AddReluFusionPass",
    ),
    ("overflow_exp", "Mint.exp.0.forward", "BORN", "output:0", "16 of 64 positions are NaN or Inf on one side only"),
    (
        "hdf5_convolution", "NpuConvolutionBackward:0", "BORN", "output:grad_inputs.result_1",
        "inputs agree (bit for bit)",
    ),
    ("cross_framework_conv", "convolution_1-aten.convolution.default", "BORN", "output:0", "rel_l2 8.11e-01"),
    ("mindspore_layer_norm", f"{LENET}ln-LayerNorm_LayerNorm-op0", "BORN", "input:5",
     "argument input:5 (eps) is 0.1 in the target"),
]  # fmt: skip
CLEAN = ["msprobe_clean", "msprobe_bfloat16", "cann_clean"]

SHARED_FAULTED = [  # (target, golden, operator, cause) as shared/data/msprobe/manifest.json tells, verified bit by bit
    ("bert/B", "bert/A", "Functional.linear.11.forward", "GAP"),
    ("bert/D", "bert/A", "Functional.layer_norm.2.forward", "BORN"),
    ("bert/E", "bert/A", "Functional.softmax.1.forward", "BORN"),
    ("vit/B", "vit/A", "Functional.softmax.1.forward", "BORN"),
    ("bert/D_md5_L1", "bert/A_md5_L1", "Functional.layer_norm.2.forward", "BORN"),
]
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared dumps are not beside this checkout")


@pytest.mark.few(12)
@pytest.mark.parametrize("sample, operator, cause, slot, words", FAULTED)
def test_planted_operator_comes_first(sample, operator, cause, slot, words):
    report = npucmp.compare(SAMPLES / sample / "target", SAMPLES / sample / "golden")
    first = report.roots[0]
    assert (first.place, first.pair.operator.name, first.cause.value, first.slot) == (1, operator, cause, slot)
    assert words in first.because
    assert report.exit_status == 1


@pytest.mark.parametrize("values", [True, False], ids=["values", "statistics"])
def test_a_fault_of_one_rank_is_told_where_it_began(tmp_path, values):
    """Two processes, gloo between them: with all that was recorded, and as if values had not been."""
    sample = tmp_path / "sample"
    shutil.copytree(SAMPLES / "msprobe_two_ranks", sample)
    for file in () if values else sample.rglob("dump.json"):
        shutil.rmtree(file.parent / "dump_tensor_data")
        text = re.sub(r'"data_name": "[^"]*"', '"data_name": null', file.read_text())
        file.write_text(text.replace('"task": "tensor"', '"task": "statistics"'))
    report = npucmp.compare(sample / "target", sample / "golden")
    roots = {(run.step, run.rank): run.roots for run in report.comparisons}
    assert [at for at in roots if roots[at]] == [(1, 0), (1, 1)]
    first = min(roots[1, 1], key=lambda root: root.place)
    assert (first.place, first.pair.operator.name) == (1, "Functional.linear.1.forward")
    assert first.cause.value == "BORN"  # of statistics too: figures of what it read agree, those that it wrote do not
    (arrived,) = roots[1, 0]
    assert (arrived.pair.operator.name, arrived.cause.value) == ("Distributed.all_reduce.0.forward", "PROPAGATED")
    assert "received from rank 1" in arrived.because
    told = screen(report)
    assert "at step 1, rank 1, operator Functional.linear.1.forward" in told
    assert "reaches the other rank through Distributed.all_reduce.0.forward" in told


def test_the_overflow_is_the_types():
    sample = SAMPLES / "overflow_exp"
    report = npucmp.overflow(sample / "target", golden=sample / "golden")
    assert [root.pair.operator.name for root in report.roots if root.cause.value == "BORN"] == ["Mint.exp.0.forward"]
    told = screen(report)
    assert "beyond float16: the type is the cause" in told and "KILLED      Mint.nan_to_num.0.forward" in told
    assert npucmp.overflow(sample / "golden").exit_status == 0


def test_the_temperature_of_a_rollout_is_named():
    sample = SAMPLES / "parity_temperature"
    result = npucmp.parity(sample / "rollout", sample / "trainer")
    assert [(one.token_class.value, one.step) for one in result.findings] == [("temperature", 1), ("temperature", 2)]
    assert result.exit_status == 1 and screen(result).splitlines()[-1].startswith("TEMPERATURE: ")
    assert npucmp.parity(sample / "rollout", sample / "trainer", step=0).verdict == "CLEAN"


def test_a_learning_rate_in_a_log_is_named():
    sample = SAMPLES / "config_log"
    result = npucmp.precheck("-", "-", config=(str(sample / "target.log"), str(sample / "golden.log")))
    (row,) = [one for one in result.rows if one.status.value == "DIFFERS"]
    assert (row.row, row.severity) == ("hyperparameters", "error") and result.exit_status == 1
    assert row.because == "actor_rollout_ref.actor.optim.lr: 2e-06 against 1e-06"


def arrays(folder):
    """All that a sample holds: the bytes of a file, of HDF5 the values, whose structure is up to the library."""
    kept = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        if file.suffix != ".h5":
            kept[str(file.relative_to(folder))] = file.read_bytes()
            continue
        with h5py.File(file) as read:
            read.visititems(
                lambda name, item: kept.update({name: item[()].tobytes()} if hasattr(item, "shape") else {})
            )
    return kept


@pytest.mark.parametrize(
    "maker, sample",
    [
        ("make_overflow.py", "overflow_exp"),
        ("make_parity.py", "parity_temperature"),
        ("make_hdf5.py", "hdf5_convolution"),
        ("make_logs.py", "config_log"),
        ("make_frameworks.py", "cross_framework_conv"),
    ],
)
def test_samples_are_what_their_programs_make(maker, sample, tmp_path):
    subprocess.run([sys.executable, SAMPLES / maker, tmp_path], check=True)
    assert arrays(tmp_path) == arrays(SAMPLES / sample) != {}


@pytest.mark.parametrize("sample", CLEAN)
def test_clean_pair_is_silent(sample):
    report = npucmp.compare(SAMPLES / sample / "target", SAMPLES / sample / "golden")
    assert report.roots == ()
    assert {finding.verdict.value for finding in report.findings} == {"match"}
    assert report.exit_status == 0


def test_a_graph_is_found_from_any_folder_of_a_dump():
    """Without its graph a fused convolution would be held against the convolution alone."""
    sample = SAMPLES / "cann_clean"
    (leaf,) = (sample / "target").glob("*/0/*/1/0")
    for folder in (leaf, leaf.parent.parent, sample / "target" / "20261121093000"):
        report = npucmp.compare(folder, sample / "golden")
        assert report.roots == () and report.exit_status == 0
        assert sum(run.matched["fused"] for run in report.comparisons) == 17


def test_without_its_graph_the_evidence_asks_for_it(tmp_path):
    shutil.copytree(SAMPLES / "cann_clean" / "target" / "20261121093000", tmp_path / "20261121093000")
    report = npucmp.compare(tmp_path, SAMPLES / "cann_clean" / "golden")
    assert (
        "net_block_0_b_bn_FusedBatchNormV3 has no partner and may be fused into this operator"
        in report.roots[0].because
    )


def test_a_graph_is_found_below_a_folder_of_several_things(tmp_path):
    sample = SAMPLES / "cann_clean"
    shutil.copytree(sample / "target" / "20261121093000", tmp_path / "npu" / "debug_0" / "dump" / "20261121093000")
    (tmp_path / "npu" / "debug_0" / "graph").mkdir()
    shutil.copy(next((sample / "target").glob("*.txt")), tmp_path / "npu" / "debug_0" / "graph")
    assert npucmp.compare(tmp_path, sample / "golden").comparisons[0].matched["fused"] == 17


@pytest.mark.few(15)
@pytest.mark.parametrize(
    "run", sorted(path for path in SAMPLES.glob("*/*") if path.is_dir()), ids=lambda p: p.parent.name + p.name
)
def test_every_run_agrees_with_itself(run):
    report = npucmp.compare(run, run)
    assert report.roots == ()
    assert {finding.verdict.value for finding in report.findings} == {"match"}


def test_an_extra_operator_mispairs_nothing():
    folder = SAMPLES / "msprobe_extra_operator"
    findings = npucmp.compare(folder / "target", folder / "golden").findings
    matched = {
        (f.pair.target_op.name, f.pair.golden_op.name) for f in findings if f.pair.target_op and f.pair.golden_op
    }
    alone = {f.pair.operator.name for f in findings if not (f.pair.target_op and f.pair.golden_op)}
    shifted = {(target, golden) for target, golden in matched if target != golden}
    assert alone == {"Tensor.__mul__.0.forward"}
    assert ("Tensor.__mul__.1.forward", "Tensor.__mul__.0.forward") in shifted
    assert ("Tensor.__mul__.2.backward", "Tensor.__mul__.1.backward") in shifted
    assert all(target.startswith("Tensor.__mul__.") for target, _ in shifted)


@pytest.mark.few(3)
@shared
@pytest.mark.parametrize("target, golden, operator, cause", SHARED_FAULTED)
def test_shared_pairs(target, golden, operator, cause):
    first = npucmp.compare(SHARED / target, SHARED / golden).roots[0]
    assert (first.pair.operator.name, first.cause.value) == (operator, cause)


def inputs_alone(folder, source, phase):
    """A copy of a dump as data_mode ["input"] makes it."""
    shutil.copytree(source, folder)
    for file in folder.rglob("dump.json"):
        dump = json.loads(file.read_text())
        kept = {name: record for name, record in dump["data"].items() if phase in name}
        dump["data"] = {name: {**record, "output": []} for name, record in kept.items()}
        file.write_text(json.dumps(dump))
    return folder


@pytest.mark.few(4)
@shared
@pytest.mark.parametrize("phase", ["", ".forward"])
@pytest.mark.parametrize(
    "target, golden, operator",
    [
        ("bert/B", "bert/A", "Functional.linear.11.forward"),
        ("bert/D", "bert/A", "Functional.linear.6.forward"),
        ("bert/E", "bert/A", "Functional.dropout.4.forward"),
        ("vit/B", "vit/A", "Functional.dropout.4.forward"),
        ("bert/D_md5_L1", "bert/A_md5_L1", "Functional.linear.6.forward"),
        ("bert/R", "bert/A", ""),
        ("bert/C", "bert/A", ""),
    ],
)
def test_shared_pairs_of_inputs_alone(tmp_path, target, golden, operator, phase):
    sides = (inputs_alone(tmp_path / str(at), SHARED / one, phase) for at, one in enumerate((target, golden)))
    report = npucmp.compare(*sides)
    assert [(root.pair.operator.name, root.cause.value) for root in report.roots][:1] == [(operator, "GAP")] * bool(
        operator
    )
    assert report.exit_status == bool(operator)


@shared
@pytest.mark.parametrize("target, golden", [("bert/D", "bert/A_md5_L1"), ("bert/D_md5_L1", "bert/A")])
def test_shared_values_against_checksums(target, golden):
    first = npucmp.compare(SHARED / target, SHARED / golden).roots[0]
    assert (first.pair.operator.name, first.cause.value) == ("Functional.layer_norm.2.forward", "BORN")
    assert npucmp.compare(SHARED / "bert/R", SHARED / "bert/A_md5_L1").exit_status == 0


@shared
def test_shared_checksums_of_runs_in_other_types_prove_nothing():
    report = npucmp.compare(SHARED / "bert/C", SHARED / "bert/A_md5_L1")
    assert (report.roots, report.exit_status) == ((), 2)


@shared
def test_shared_steps_with_different_batches_have_different_inputs():
    folder = DATA / "public" / "msprobe_resnet50_gpu"
    report = npucmp.compare(folder / "step1", folder / "step0")
    places = [root for root in report.roots if root.cause.value != "PROPAGATED"]
    assert [(root.pair.operator.name, root.slot) for root in places] == [("Functional.conv2d.0.forward", "input:0")]
    assert "the runs may have read different inputs" in places[0].because


@shared
@pytest.mark.parametrize(
    "told, words",
    [
        ("md5_L1_a", "equal checksums"),
        ("xor_L0_a", "equal XOR checksums, which prove nothing: constants and reordered values share them"),
    ],
)
def test_shared_checksums_are_those_of_the_values(told, words):
    """CRC-32 and XOR of float32, bfloat16 and int64, as mindstudio-probe 26.2 wrote them of the same run. An XOR proves
    no equality; one that differs would be `diverged`."""
    folder = DATA / "framework" / "generated_msprobe_26_2"
    report = npucmp.compare(folder / "tensor_mix_a", folder / told)
    both = [one for one in report.findings if one.pair.golden and one.pair.target]
    assert len(both) > 50 and {one.because for one in both} == {words}


@shared
@pytest.mark.parametrize("target", ["bert/R", "bert/C"])
def test_shared_clean_pairs(target):
    report = npucmp.compare(SHARED / target, SHARED / "bert/A")
    assert (report.roots, report.exit_status) == ((), 0)


@shared
def test_statistics_alone_prove_no_agreement():
    paths = SHARED / "bert/R_stat_L1", SHARED / "bert/A_stat_L1"
    plain, trusting = npucmp.compare(*paths), npucmp.compare(*paths, trust_statistics=True)
    assert {finding.verdict.value for finding in plain.findings} == {"unknown"}
    assert (plain.exit_status, trusting.exit_status) == (2, 0)


@shared
@pytest.mark.parametrize(
    "target, golden, operator",
    [
        ("mindspore/B", "mindspore/A", f"{LENET}ln-LayerNorm_LayerNorm-op0"),
        ("tf/faulted/npy", "tf/golden/npy", "resnet_block_1_bn2_FusedBatchNormV3"),
        ("tf/faulted/npy", "tf/golden/tfdbg_raw", "resnet_block_1_bn2_FusedBatchNormV3"),
    ],
)
def test_shared_dumps_of_other_formats(target, golden, operator):
    first = npucmp.compare(DATA / target, DATA / golden).roots[0]
    assert (first.pair.operator.name, first.cause.value, first.slot) == (operator, "BORN", "output:0")


@shared
@pytest.mark.parametrize("target, golden", [("mindspore/R", "mindspore/A"), ("tf/golden/npy", "tf/golden/tfdbg_raw")])
def test_shared_clean_pairs_of_other_formats(target, golden):
    report = npucmp.compare(DATA / target, DATA / golden)
    assert (report.roots, report.exit_status) == ((), 0)


def test_the_cann_sample_compares_every_tensor_and_names_those_of_the_network():
    folder = SAMPLES / "cann_fused_conv"
    report = npucmp.compare(folder / "target", folder / "golden")
    assert all(finding.pair.target is not None and finding.pair.golden is not None for finding in report.findings)
    assert {finding.pair.via for finding in report.findings} == {"fused", "name"}
    first = report.roots[0].pair
    assert first.golden_op.name == "net/block_0/b/bn/FusedBatchNormV3"
    assert first.target.layout == "NC1HWC0" and first.target.shape == first.golden.shape == (1, 8, 8, 20)


def test_a_mapping_joins_two_worlds(tmp_path):
    """MindSpore's kernels against plain arrays of another framework, by the names that a user wrote down."""
    folder = SAMPLES / "mindspore_layer_norm"
    plain = {"relu": "relu-ReLU_ReLU-op2", "norm": "ln-LayerNorm_LayerNorm-op0", "out": "f2-Dense_MatMul-op0"}
    (tmp_path / "golden").mkdir()
    for name, kernel in plain.items():
        (file,) = folder.glob(f"golden/rank_0/LeNet/0/0/*{kernel}*.output.0.*")
        (tmp_path / "golden" / f"{name}.0.{file.name.split('.')[4]}.npy").write_bytes(file.read_bytes())
    names = {f"{LENET}{kernel}": name for name, kernel in plain.items()}
    report = npucmp.compare(folder / "target", tmp_path / "golden", mapping=names)
    assert {finding.pair.via for finding in report.findings} == {"mapping", ""}
    assert report.roots[0].pair.golden_op.name == "norm"
