"""The planter: its numbers, its gradients, its truths. Whether its networks are those of torch: against_torch.py."""

import ast
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.corpus.device import Arithmetic, Device, erf, rounded
from tests.corpus.draw import VARIATIONS, Plan, plan
from tests.corpus.faults import FAULTS, Random, Setting
from tests.corpus.networks import NETWORKS, TOGETHER, Net, Size, Weights
from tests.corpus.planter import family, planted
from tests.corpus.ranks import Skip
from tests.corpus.tape import Precision, Session, Tape
from tests.corpus.trace import Tensor
from tests.corpus.training import Recipe, train
from tests.corpus.truth import Question, by_address, same, truth_of

HERE = Path(__file__).parent
SMALL = Size(2, 4, 16, 2, 1)
NUMPY_ONLY = [
    *(
        HERE / f"{name}.py"
        for name in ("trace", "spelling", "device", "operators", "tape", "ranks", "networks", "faults")
    ),
    *(HERE / f"{name}.py" for name in ("training", "draw", "truth", "planter", "unseen")),
    *HERE.glob("second_*.py"),
    *(path for path in (HERE / "writers").glob("*.py") if path.name != "hdf5.py"),
]


@pytest.mark.lint
@pytest.mark.parametrize("path", NUMPY_ONLY, ids=lambda path: path.name)
def test_the_planter_imports_numpy_and_nothing_of_npucmp(path):
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    foreign = {
        name for name in names if name.split(".")[0] in ("npucmp", "ml_dtypes", "torch", "h5py", "pandas", "pytest")
    }
    assert not foreign
    assert all(name.startswith("tests.corpus") for name in names if name.startswith("tests"))


# Numbers

numbers = st.floats(width=64, allow_nan=False, min_value=-1e38, max_value=1e38)


@given(st.lists(numbers, min_size=1, max_size=40))
def test_rounding_is_that_of_the_types(values):
    x = np.array(values)
    single = x.astype(np.float32)
    assert np.array_equal(rounded(x, "bfloat16"), single.astype(ml_dtypes.bfloat16).astype(np.float64))
    with np.errstate(over="ignore"):
        assert np.array_equal(rounded(x, "float16"), x.astype(np.float16).astype(np.float64))
    assert (np.abs(rounded(x, "bfloat16", toward_zero=True)) <= np.abs(x)).all()


def test_erf():
    x = np.linspace(-7, 7, 5001)
    assert np.abs(erf(x) - [math.erf(one) for one in x]).max() < 1e-15


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("block", [16, 64])
def test_sums_in_blocks_are_off_by_roundings_only(order, block):
    draw = np.random.RandomState(1)
    a, b = draw.standard_normal((9, 300)), draw.standard_normal((300, 7))
    a, b = rounded(a, "float32"), rounded(b, "float32")
    arithmetic = Arithmetic(Device(block, order))
    for got, right, terms in (
        (arithmetic.matmul(a, b), a @ b, np.abs(a) @ np.abs(b)),
        (arithmetic.sum(a, 1), a.sum(1), np.abs(a).sum(1)),
    ):
        assert (np.abs(got - right) <= 20 * 2.0**-24 * terms).all()
        assert not np.array_equal(got, right)


def test_two_devices_differ_in_the_last_bits():
    x = np.linspace(-3, 3, 1000)
    once, slope = Arithmetic(Device()).function("exp", x), Arithmetic(Device(slope=1.5)).function("exp", x)
    error = np.abs(slope / once - 1)
    assert 0 < error.max() < 4 * 2.0**-24


# Gradients


@pytest.mark.parametrize(
    "options", [{}, {"attention": "fused", "norm": "split", "act": "split", "linear": "split"}], ids=["", "other"]
)
@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_are_the_slopes_of_the_loss(network, options):
    """Along one direction in the space of all weights, by central differences in float64."""

    def loss(shift):
        session = Session(Device(), Precision("float64"))
        weights = Weights(3)
        weights.changes = {name: (lambda v, d=d: v + shift * d) for name, d in direction.items()}
        net = Net(Tape(session), weights, SMALL, options, 5)
        value = NETWORKS[network].build(net)
        session.backward([value])
        return float(value.tensor.values), session

    direction = {}
    _, session = loss(0.0)
    draw = np.random.RandomState(2)
    slopes = {name: g.values for (_, name), g in session.weight_gradients.items()}
    direction.update({name: draw.standard_normal(g.shape) for name, g in slopes.items()})
    step = 1e-6
    seen = (loss(step)[0] - loss(-step)[0]) / (2 * step)
    told = sum((slopes[name] * direction[name]).sum() for name in slopes)
    assert seen == pytest.approx(told, rel=2e-4, abs=1e-7)


CODINGS = [
    (one, network)
    for one in VARIATIONS
    for network, kind in NETWORKS.items()
    if not one.shared and (not one.needs or one.needs in kind.features)
]


@pytest.mark.few(12)
@pytest.mark.parametrize(("variation", "network"), CODINGS, ids=[f"{one.name}-{network}" for one, network in CODINGS])
def test_a_clean_variation_changes_nothing(variation, network):
    """In float64: the same loss at each of two steps, whatever the two codings are."""
    losses = []
    for options in (variation.target, variation.golden):
        recipe = Recipe(network, SMALL, Precision("float64"), options=options, steps=2, update="sgd", seed=4)
        losses.append([_loss(session) for session in train(recipe).sessions])
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def _loss(session):
    """The last thing that the forward wrote."""
    (loss,) = (
        one
        for _, one in session.records
        if (one.kind, one.phase) in (("cross_entropy", "forward"), ("mse_loss", "forward"))
    )
    return float(loss.outputs[0].values)


# Runs


@pytest.mark.parametrize("together", TOGETHER)
def test_ranks_of_one_run_agree_on_their_loss(together):
    session = Session(Device(), ranks=2)
    nets = [Net(Tape(session, rank), Weights(3), SMALL, {}, 5) for rank in range(2)]
    losses = TOGETHER[together](nets)
    session.backward(losses)
    assert len({float(one.tensor.values) for one in losses}) == 1
    assert {rank for rank, _ in session.records} == {0, 1}


def test_training_goes_down():
    trained = train(Recipe("encoder", SMALL, steps=3, update="adamw"))
    assert [run.step for run in trained.runs] == [0, 1, 2]
    first, last = (_weights(trained.sessions[step]) for step in (0, 2))
    moved = [name for name in first if not np.array_equal(first[name], last[name])]
    assert len(moved) == len(first)


def _weights(session):
    found = {}
    for _, record in session.records:
        for item in record.inputs:
            if isinstance(item, Tensor) and item.parameter:
                found[item.parameter] = item.values
    return found


def test_the_same_number_gives_the_same_family():
    one, two = family("open", 13), family("open", 13)
    assert [case.truth for case in one.cases] == [case.truth for case in two.cases]
    a, b = by_address(one.cases[-1].target), by_address(two.cases[-1].target)
    assert a.keys() == b.keys()
    assert all(same(x, y) for key in a for x, y in zip(a[key].outputs, b[key].outputs))


def test_held_families_hold_no_open_network_with_an_open_kind():
    for number in range(60):
        drawn = plan("held", number)
        if drawn.facts["held network"] == "False":
            assert all(fault.held for fault in drawn.faults)
            assert drawn.variation is None or drawn.variation.held


# Faults

RECIPES = [
    *(Recipe(name, SMALL, seed=1) for name in NETWORKS),
    Recipe("encoder", SMALL, Precision("float16"), options={"dropout": 0.1, "energy": -1e4}, seed=1, loss_scale=1.0),
    Recipe("decoder", SMALL, options={"energy": -1e4, "norm": "split"}, seed=1, steps=2),
    *(Recipe(name, SMALL, seed=1, together=name) for name in TOGETHER),
]


@pytest.fixture(scope="module")
def clean():
    return [(recipe, train(recipe)) for recipe in RECIPES]


@pytest.mark.few(10)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_kind_of_fault_strikes_somewhere_and_changes_what_is_recorded(fault, clean):
    struck = 0
    for place, (recipe, trained) in enumerate(clean):
        drawn = Plan(recipe, recipe, None, {}, [fault], "all", False)
        found = planted(fault, drawn, trained, Random(place))
        if found is None:
            continue
        plants = found.plants
        faulty = train(recipe, plants, found.setting)
        skipped = [plant.address for plant in plants if isinstance(plant, Skip)]
        truth = truth_of(trained, faulty, plants, (faulty.runs, trained.runs, trained.runs), Question(), 2.0**-24)
        if truth is None:
            continue
        struck += 1
        assert truth.beyond > 0
        assert truth.operators
        for plant in plants:
            if plant.address in truth.operators and plant.address not in skipped:
                _assert_born_there(plant.address, trained, faulty)
        if struck == 3:
            break
    assert struck


def _assert_born_there(address, trained, faulty):
    """All tensors that the operator read are as in the clean run, one that it wrote is not."""
    right, wrong = (by_address(one.runs)[address] for one in (trained, faulty))
    assert all(same(a, b) for a, b in zip(right.inputs, wrong.inputs) if isinstance(a, Tensor))
    assert not all(same(a, b) for a, b in zip(right.outputs, wrong.outputs))


def test_nothing_planted_shows_nowhere():
    recipe = RECIPES[0]
    trained, again = train(recipe), train(recipe, (), Setting())
    kept = again.runs, trained.runs, trained.runs
    assert truth_of(trained, again, (), kept, Question(), 2.0**-24) is None
