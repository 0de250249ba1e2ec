"""What descends from a root stays diverged: its error is no match, however well the errors before it explain it."""

import numpy as np

import npucmp
from tests.synthetic import chain, write_run

random = np.random.default_rng(3)


def normal(*shape):
    return random.standard_normal(shape).astype(np.float32)


def off(x, error):
    return (x * (1 + error * random.standard_normal(x.shape))).astype(np.float32)


def verdicts(tmp_path, target, golden):
    got = npucmp.compare(write_run(tmp_path / "target", target), write_run(tmp_path / "golden", golden), jobs=1)
    assert got.exit_status == 1
    return {f"{one.pair.operator.name} {one.pair.slot}": one.verdict.value for one in got.findings}


def test_a_backward_descends_from_what_its_forward_read(tmp_path):
    """The gradient of a loss is 1, which links nothing; what the loss read bears the error."""
    x, y, label, gradient = normal(8, 8), normal(8, 8), normal(8, 8), normal(8, 8)

    def run(y, gradient):
        return {
            "Functional.gelu.0.forward": {"in": [x], "out": [y]},
            "Functional.mse_loss.0.forward": {"in": [y, label], "out": [np.float32([0.7])]},
            "Functional.mse_loss.0.backward": {"in": [np.float32([1.0])], "out": [gradient]},
            "Functional.gelu.0.backward": {"in": [gradient], "out": [gradient * 2]},
        }

    found = verdicts(tmp_path, run(off(y, 0.01), off(gradient, 0.01)), run(y, gradient))
    assert found["Functional.mse_loss.0.backward output:0"] == "diverged"
    assert found["Functional.gelu.0.backward output:0"] == "diverged"


def inputs_of_a_chain():
    """A chain with rounding noise and a fault, of which only inputs were recorded."""
    target, golden = chain({1: 1.05}, noise=1e-7, seed=2), chain()
    return tuple({name: {"in": one["in"]} for name, one in run.items()} for run in (target, golden))


def test_recorded_inputs_alone_stay_diverged_where_they_are_read_again(tmp_path):
    target, golden = inputs_of_a_chain()
    for run in (target, golden):  # a second reader of each
        for n in range(2, 6):
            run[f"Torch.tanh.{n}.forward"] = {"in": run[f"Functional.linear.{n}.forward"]["in"][:1]}
    found = verdicts(tmp_path, target, golden)
    read = [verdict for name, verdict in found.items() if name.endswith("input:0") and int(name.split(".")[2]) >= 2]
    assert len(read) == 8 and set(read) == {"diverged"}


def test_recorded_outputs_alone_stay_diverged_behind_a_root(tmp_path):
    """The noise before the root was of 3e-7, so that 8 times of it would explain what comes behind."""
    values = [normal(16, 16) for _ in range(6)]
    errors = (3e-7, 0.1, 2e-6, 2e-6, 2e-6, 2e-6)
    for side in ("target", "golden"):
        (tmp_path / side).mkdir()
        for n, (one, error) in enumerate(zip(values, errors)):
            value = off(one, error) if side == "target" else one
            np.save(tmp_path / side / f"layer{n}_MatMul.0.{1_767_225_600_000_000 + n}.npy", value)
    got = npucmp.compare(tmp_path / "target", tmp_path / "golden", jobs=1)
    assert [one.verdict.value for one in got.findings] == ["match"] + ["diverged"] * 5


def test_a_module_around_a_root_descends_from_it(tmp_path):
    """What a module's backward does inside is not known: masks that flip would explain √e."""
    read, wrote, made = normal(8, 64), normal(8, 64), normal(8, 64)

    def run(error):
        inner, outer = (off(one, error) if error else one for one in (wrote, made))
        seen = off(read, 3e-7) if error else read
        return {
            "Module.block.act.SiLU.backward.0": {"in": [read], "out": [inner]},
            "Module.block.Block.backward.0": {"in": [seen], "out": [outer]},
        }

    found = verdicts(tmp_path, run(1e-3), run(0.0))
    assert found["Module.block.act.SiLU.backward.0 output:0"] == "diverged"
    assert found["Module.block.Block.backward.0 output:0"] == "diverged"


def test_what_was_overwritten_on_one_side_alone_is_no_match(tmp_path):
    """The golden holds what an in-place operator wrote, the target what it read: nothing says they are the same."""
    x, step, wrote = normal(8, 8), normal(8, 8), normal(8, 8)
    runs = ({"Tensor.add_.0.forward": {"in": [read, step], "out": [wrote]}} for read in (x, wrote))
    sides = (write_run(tmp_path / side, run) for side, run in zip(("target", "golden"), runs))
    got = npucmp.compare(*sides, jobs=1)
    assert (got.findings[0].verdict.value, got.findings[0].rule) == ("unknown", "overwritten")
    assert got.exit_status == 0 and not got.roots
