"""The second generation of families: what its networks, devices and faults are, by plain computations beside them; and
that the first generation is what it was."""

import hashlib
import math

import numpy as np
import pytest
from click.testing import CliRunner

from tests.corpus import score
from tests.corpus.__main__ import main
from tests.corpus.device import Device
from tests.corpus.draw import DOMAINS, Plan
from tests.corpus.faults import FAULTS, Random
from tests.corpus.networks import NETWORKS, Size, Weights
from tests.corpus.planter import family, open_gradients, planted, sites
from tests.corpus.second_draw import SECOND_DOMAINS, VARIATIONS, device_for, fits, plan
from tests.corpus.second_faults import SECOND_FAULTS
from tests.corpus.second_networks import HELD2, OPEN2, SECOND_TOGETHER, SecondNet
from tests.corpus.tape import Precision, Session, Tape
from tests.corpus.trace import Tensor
from tests.corpus.training import KINDS, Recipe, train
from tests.corpus.truth import Question, by_address, in_order, partner_of, same, tensors_in, truth_of
from tests.corpus.unseen import UNSEEN_FAULTS, UNSEEN_NETWORKS

SMALL = Size(2, 4, 16, 2, 2)
NEW = {**OPEN2, **HELD2, **UNSEEN_NETWORKS}
TRAINED = [name for name, kind in NEW.items() if "training" in kind.features]


def recipe(network, **changes):
    return Recipe(network, changes.pop("size", SMALL), seed=1, net=SecondNet, **changes)


def records(trained, kind, phase="forward", rank=0):
    return [
        one
        for run in trained.runs
        if (run.rank or 0) == rank
        for one in run.records
        if (one.kind, one.phase) == (kind, phase)
    ]


# The first generation

BEFORE = {
    "open": "c2cb41d7e0a47237ec1b3477637db7a92560c428ac9b307f5a120910bf498d11",  # interpolate names its scale_factor
    "held": "1cd8df6135e98aae339007cee6ee91d5ba4016001f6db723ea809fc30209e715",
}


@pytest.mark.parametrize("domain", BEFORE)
def test_families_of_the_first_generation_are_bit_for_bit_what_they_were(domain):
    """Families 0 and 1: kinds and truths, and of each record its name in the dump and all that is written of it."""
    digest = hashlib.sha256()
    for number in range(2):
        some = family(domain, number)
        digest.update(repr(some.style).encode())
        for case in some.cases:
            causes = sorted((key, sorted(value)) for key, value in case.truth.operators.items())
            digest.update(
                repr((case.name, case.kind, sorted(case.facts.items()), causes, case.truth.statuses)).encode()
            )
        for runs in (some.golden, *(case.target for case in some.cases)):
            for run, record, name in score.names_of(runs, some.style):
                digest.update(f"{run.step} {run.rank} {name} {record.line} {record.given} {record.told}".encode())
                for item in (*tensors_in(record), *record.outputs):
                    digest.update(
                        item.values.tobytes() + str(item.key).encode()
                        if isinstance(item, Tensor)
                        else repr(item).encode()
                    )
    assert digest.hexdigest() == BEFORE[domain]


# Domains


def test_no_network_or_kind_of_fault_of_unseen_stands_elsewhere():
    others = {*NETWORKS, *OPEN2, *HELD2}
    assert len(UNSEEN_NETWORKS) == 3 and not others & set(UNSEEN_NETWORKS)
    kinds = {fault.name for fault in (*FAULTS, *SECOND_FAULTS)}
    assert len(UNSEEN_FAULTS) == 10 and not kinds & {fault.name for fault in UNSEEN_FAULTS}


def test_open2_has_nothing_that_is_held():
    for number in range(60):
        drawn = plan("open2", number)
        assert not any(fault.held for fault in drawn.faults)
        assert drawn.variation is None or not drawn.variation.held
        assert drawn.facts["network"] in {*OPEN2, "tp_decoder", "pipeline"}


@pytest.mark.parametrize("domain", SECOND_DOMAINS)
def test_a_third_of_the_families_have_two_ranks(domain):
    drawn = [plan(domain, number) for number in range(300)]
    assert 0.27 < sum(one.facts["ranks"] == "2" for one in drawn) / 300 < 0.4
    assert len(set(DOMAINS.values())) == len(DOMAINS)


@pytest.mark.parametrize("domain", ["held2", "unseen"])
@pytest.mark.parametrize("arguments", [["--cases"], ["--case", "{}/1/clean", "--keep", "x"]])
def test_cases_to_report_by_are_not_shown(domain, arguments):
    arguments = [one.format(domain) for one in arguments]
    done = CliRunner().invoke(main, ["--seeds", domain, "--families", "1", *arguments])
    assert done.exit_code == 2
    assert "held" in done.output


# Networks


@pytest.mark.few(5)
@pytest.mark.parametrize("options", [{}, {"checkpoint": True, "dropout": 0.1, "seed_told": "mask"}], ids=["", "again"])
@pytest.mark.parametrize("network", TRAINED)
def test_gradients_are_the_slopes_of_the_loss(network, options):
    """Along one direction in the space of all weights, by central differences in float64."""

    def loss(shift):
        session, weights = Session(Device(), Precision("float64")), Weights(3)
        weights.changes = {name: (lambda v, d=d: v + shift * d) for name, d in direction.items()}
        value = KINDS[network].build(SecondNet(Tape(session), weights, SMALL, options, 5))
        session.backward([value])
        return float(value.tensor.values), session

    direction = {}
    slopes = {name: g.values for (_, name), g in loss(0.0)[1].weight_gradients.items()}
    draw = np.random.RandomState(2)
    direction.update({name: draw.standard_normal(g.shape) for name, g in slopes.items()})
    seen = (loss(1e-6)[0] - loss(-1e-6)[0]) / 2e-6
    assert seen == pytest.approx(sum((slopes[name] * direction[name]).sum() for name in slopes), rel=2e-4, abs=1e-7)


CODINGS = [(one, name) for one in VARIATIONS for name, kind in NEW.items() if fits(one, kind.features)]


@pytest.mark.few(6)
@pytest.mark.parametrize(("variation", "network"), CODINGS, ids=[f"{v.name}-{n}" for v, n in CODINGS])
def test_a_variation_changes_no_tensor_that_both_record(variation, network):
    """On one device: the same bits in all that has a partner, at each of two steps."""
    a, b = (
        train(recipe(network, options={**one, "by_step": True}, steps=2))
        for one in (variation.target, variation.golden)
    )
    pairs = partner_of(a.runs, b.runs)
    assert pairs
    for record, other in pairs.items():
        assert all(same(x, y) for x, y in zip(record.outputs, other.outputs) if isinstance(x, Tensor)), record.kind


def test_a_kernel_without_a_record_leaves_its_borders():
    hidden = train(recipe("llama", options={"unrecorded": ("attention", "norm", "swiglu")}))
    assert not records(hidden, "softmax") and not records(hidden, "silu", "backward") and not records(hidden, "mul")
    assert [one.call for one in records(hidden, "linear")] == list(range(15))
    whole = train(recipe("llama"))
    seen = {one.tobytes() for record in records(hidden, "linear") for one in [record.inputs[0].values]}
    assert seen == {record.inputs[0].values.tobytes() for record in records(whole, "linear")}
    assert open_gradients(whole.runs, partner_of(hidden.runs, whole.runs).values())
    only_attention = train(recipe("llama", options={"unrecorded": ("attention",)}))
    assert not open_gradients(whole.runs, partner_of(only_attention.runs, whole.runs).values())


def test_a_layer_that_is_computed_again_repeats_its_bits_under_a_fault_too():
    for device in (Device(), Device(flips=0.1, seed=3)):
        done = recipe("llama", options={"checkpoint": True, "dropout": 0.1}, device=device)
        clean = train(done)
        once = records(clean, "softmax")
        assert len(once) == 2 * SMALL.layers
        for first, again in ((once[0], once[3]), (once[1], once[2])):  # the last layer comes first
            assert same(first.outputs[0], again.outputs[0])
        fault = next(one for one in FAULTS if one.name == "scale")
        plants = [fault.make(_site(clean, once[0]), Random(4))]
        faulty = records(train(done, plants), "softmax")
        assert not same(faulty[0].outputs[0], once[0].outputs[0])
        assert same(faulty[0].outputs[0], faulty[3].outputs[0])


def _site(trained, record):
    return next(one for one in sites(trained) if one.record is record)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_cache_grows_by_a_word(steps):
    done = train(recipe("generate", options={"by_step": steps > 1}, steps=steps))
    joined = records(done, "cat")
    assert [one.outputs[0].values.shape[2] for one in joined[:: 2 * SMALL.layers]] == [5, 6, 7][: steps - 1 or 3]
    assert not records(done, "linear", "backward")
    first, second = joined[0], joined[2 * SMALL.layers]
    assert np.array_equal(second.inputs[0].values, first.outputs[0].values)


def test_a_static_cache_is_written_row_by_row():
    done = train(recipe("static_cache"))
    first, second = records(done, "setitem")[0], records(done, "setitem")[2 * SMALL.layers]
    assert list(first.inputs[1]) == [0, 1, 2, 3] and list(second.inputs[1]) == [4]
    assert np.array_equal(second.inputs[0].values, first.outputs[0].values)
    read = records(done, "matmul")[2 * SMALL.layers]  # scores of the first word
    assert read.inputs[1].values.shape[-1] == 5


def test_a_state_goes_on_from_step_to_step():
    done = train(recipe("gru_state", steps=2))
    last = records(done, "layer_norm")
    states = [one for one in records(done, "linear") if one.scope == "gru.state"]
    assert np.array_equal(states[4].inputs[0].values, last[0].inputs[0].values)
    assert not states[0].inputs[0].values.any()


def test_lengths_change_between_steps():
    done = train(recipe("llama", steps=3, lengths=(6, 5, 3)))
    assert [one.inputs[0].values.shape[1] for one in records(done, "embedding")] == [6, 5, 3]


def test_casts_go_up_and_down_again():
    done = train(recipe("llama", precision=Precision("bfloat16"), options={"cast_up": True}))
    assert {one.outputs[0].dtype for one in records(done, "softmax")} == {"float32"}
    assert {one.outputs[0].dtype for one in records(done, "linear")} == {"bfloat16"}
    assert {one.inputs[1] for one in records(done, "to")} == {"torch.float32", "torch.bfloat16"}


@pytest.mark.parametrize("told", ["argument", "mask", ""])
def test_another_seed_drops_other_elements(told):
    runs = [train(recipe("llama", options={"dropout": 0.3, "seed_told": told, "seed": seed})) for seed in (0, 0, 1)]
    scope = "layers.0"
    kind = "mul" if told == "mask" else "dropout"
    a, b, c = (next(one for one in records(run, kind) if one.scope == scope) for run in runs)
    assert same(a.outputs[0], b.outputs[0])
    assert not np.array_equal(a.outputs[0].values == 0, c.outputs[0].values == 0)
    assert (a.keywords.get("philox_seed") != c.keywords.get("philox_seed")) == (told == "argument")
    if told == "mask":
        assert np.array_equal(a.inputs[1].values == 0, a.outputs[0].values == 0)


def test_devices_of_hf32():
    golden = Device(reduced=True)
    r = Random(1)
    assert device_for(r, "hf32 both", golden).reduced
    assert not device_for(r, "hf32 golden", golden).reduced
    assert device_for(r, "hf32", Device()).reduced
    x = np.float64(1 + 2.0**-12)
    done = train(recipe("lstm", device=golden))
    product = next(one for one in records(done, "linear") if one.scope.endswith("input"))
    a, w, b = (one.values.astype(np.float64) for one in product.inputs)
    error = np.abs(a @ w.T + b - product.outputs[0].values)
    short = np.abs(_eleven_bits(a) @ _eleven_bits(w).T + b - product.outputs[0].values)
    assert short.max() < 1e-5 < error.max() and _eleven_bits(x) == 1.0


def _eleven_bits(x):
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.rint(fraction * 2.0**11), exponent - 11)


@pytest.mark.parametrize("together", SECOND_TOGETHER)
def test_ranks_of_one_run_agree_on_their_loss(together):
    session = Session(Device(), ranks=2)
    losses = SECOND_TOGETHER[together]([SecondNet(Tape(session, k), Weights(3), SMALL, {}, 5) for k in range(2)])
    session.backward(losses)
    assert len({float(one.tensor.values) for one in losses}) == 1


# Faults

RECIPES = [
    recipe("llama", steps=2, update="adamw", options={"mask": -1e4}),
    *(recipe(name, steps=2, options={"by_step": True}) for name in NEW),
    recipe("llama", options={"dropout": 0.2, "checkpoint": True, "unrecorded": ("norm", "swiglu")}),
    recipe("encoder", options={"dropout": 0.2, "mask": -1e4}, precision=Precision("float16")),
    recipe("lstm", size=Size(2, 5, 40, 2, 1), steps=2),
    recipe("tp_decoder", together="tp_decoder", steps=2),
    recipe("llama", together="data_parallel", steps=2),
]


@pytest.fixture(scope="module")
def clean():
    return [(one, train(one)) for one in RECIPES]


@pytest.mark.few(3)
@pytest.mark.parametrize("fault", [*SECOND_FAULTS, *UNSEEN_FAULTS], ids=lambda fault: fault.name)
def test_every_kind_strikes_what_it_claims_and_nothing_before_it(fault, clean):
    """Its check is a plain computation from what the first struck operator read."""
    struck = 0
    for place, (one, trained) in enumerate(clean):
        found = planted(fault, Plan(one, one, None, {}, [fault], "all", False), trained, Random(place + 3))
        if found is None:
            continue
        faulty = train(one, found.plants, found.setting)
        question = Question(each_rank=found.each_rank)
        truth = truth_of(trained, faulty, found.plants, (faulty.runs, trained.runs, trained.runs), question, 2.0**-24)
        if truth is None:
            continue
        struck += 1
        assert truth.operators and truth.beyond > 0
        _assert_nothing_before(truth, trained, faulty, found)
        CHECKS[fault.name](Seen(trained, faulty, truth, found, one))
        if struck == 3:
            break
    assert struck


def _assert_nothing_before(truth, trained, faulty, found):
    """All records that ran before the first accepted one are the same, bit for bit; of it, all that it read is, unless
    the fault came in with a tensor."""
    right, wrong = by_address(trained.runs), by_address(faulty.runs)
    order = in_order(trained)
    first = min(order.index(address) for address in truth.operators)
    for address in order[:first]:
        for a, b in zip(
            (*tensors_in(right[address]), *right[address].outputs),
            (*tensors_in(wrong[address]), *wrong[address].outputs),
        ):
            assert same(a, b) or not isinstance(a, Tensor), address
    if any(plant.address == order[first] for plant in found.plants):
        for a, b in zip(tensors_in(right[order[first]]), tensors_in(wrong[order[first]])):
            assert same(a, b) or not isinstance(a, Tensor)


class Seen:
    """What a check looks at: the first accepted operator in both runs."""

    def __init__(self, trained, faulty, truth, found, recipe):
        self.trained, self.faulty, self.found, self.recipe = trained, faulty, found, recipe
        order = in_order(trained)
        self.address = min(truth.operators, key=order.index)
        self.right, self.wrong = (by_address(one.runs)[self.address] for one in (trained, faulty))
        self.forward = by_address(trained.runs).get(self.address._replace(phase="forward"))

    def is_planted(self):
        return any(plant.address == self.address for plant in self.found.plants)

    def out(self):
        """The first output that differs: faulty, clean, in float64."""
        for a, b in zip(self.wrong.outputs, self.right.outputs):
            if a is not None and not same(a, b):
                return a.values.astype(np.float64), b.values.astype(np.float64)
        raise AssertionError(self.address)

    def near(self, values, tolerance=1e-5):
        """Whether the faulty output is these values, rounded."""
        got = self.out()[0]
        unit = {"float32": 1.0, "float16": 1e3, "bfloat16": 1e4}[self.wrong.outputs[0].dtype]
        assert np.abs(got - values).max() <= tolerance * unit * max(1e-3, np.abs(values).max())

    def read(self, place):
        return self.right.inputs[place].values.astype(np.float64)


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def check_kind(seen):
    plants = seen.found.plants
    assert len({one.address[2:4] for one in plants}) == 1
    assert seen.is_planted() or seen.address.phase == "backward"  # or what wrote no recorded gradient
    right, wrong = by_address(seen.trained.runs), by_address(seen.faulty.runs)
    assert any(not same(x, y) for x, y in zip(right[plants[-1].address].outputs, wrong[plants[-1].address].outputs))


def check_kind_scale(seen):
    a, b = seen.out()
    big = np.abs(b) > 0.1 * np.abs(b[np.isfinite(b)]).max()
    ratio = a[big & np.isfinite(b)] / b[big & np.isfinite(b)]
    assert ratio.std() < 2e-3 and abs(ratio.mean() - 1) > 1e-4


def _ratios(seen, step):
    """The faulty value by the clean one of each parameter, as an operator of a step read it."""
    found = {}
    for a, b in zip(seen.faulty.runs, seen.trained.runs):
        for x, y in zip(a.records, b.records):
            for one, other in zip(x.inputs, y.inputs):
                if isinstance(one, Tensor) and one.parameter and a.step == step:
                    kept = np.abs(other.values) > 0.1  # an update moves these by 3 % at most
                    found[one.parameter] = (one.values[kept].astype(float) / other.values[kept], other.dtype)
    return found


def check_all_weights(seen):
    ratios = _ratios(seen, 0)
    middle = np.median(next(iter(ratios.values()))[0])
    assert len(ratios) > 2 and abs(middle - 1) > 1e-4
    assert all(
        np.allclose(values, middle, rtol=2e-7 if dtype == "float32" else 2e-3) for values, dtype in ratios.values()
    )


def check_decay(seen):
    assert seen.address.step == 1
    decay = 0.003 * 0.1 if seen.recipe.update == "adamw" else 0.05 * 0.01
    for values, _ in _ratios(seen, 1).values():
        assert np.allclose(values, 1 + decay, atol=2e-4 if seen.recipe.update == "sgd" else 4e-5)


def check_step_before(seen):
    assert seen.address.step > 0
    before = by_address(seen.trained.runs)[seen.address._replace(step=seen.address.step - 1)]
    assert np.array_equal(seen.out()[0], before.outputs[0].values)


def check_rank_lost(seen):
    assert np.array_equal(seen.out()[0], seen.read(0))
    other = [one for one in seen.found.plants if one.address.rank != seen.address.rank]
    assert not other


def check_cache_row(seen):
    if seen.address.kind == "setitem":
        expected = seen.read(0).copy()
        rows = np.asarray(seen.right.inputs[1]) + 1
        expected[rows % len(expected)] = seen.read(2)
    else:
        old = seen.read(0)
        axis = seen.right.keywords["dim"]
        count, whole = seen.read(1).shape[axis], old.shape[axis]
        expected = np.concatenate([old, np.take(old, range(whole - count, whole), axis)], axis)
    assert np.array_equal(seen.out()[0], expected)


def check_labels(seen):
    labels = np.roll(seen.right.inputs[1].values, 1)
    seen.near(-np.log(_softmax(seen.read(0))[np.arange(len(labels)), labels]).mean(), 1e-4)


def check_rope_start(seen):
    places = [(a, b) for a, b in zip(seen.wrong.inputs, seen.right.inputs) if isinstance(a, Tensor) and not same(a, b)]
    assert places
    if seen.address.kind == "rope":  # its table of cosines begins at the angle of the second word
        a, b = places[0]
        assert np.array_equal(a.values[:-1], b.values[1:])


def check_swapped_axes(seen):
    a, b = seen.out()
    shape = b.shape
    assert any(np.array_equal(a, np.swapaxes(b, k, k + 1)) for k in range(b.ndim - 1) if shape[k] == shape[k + 1])


def check_softmax_axis(seen):
    seen.near(np.swapaxes(_softmax(np.swapaxes(seen.read(0), -1, -2)), -1, -2))
    a, b = seen.out()
    assert np.allclose(a.sum(-2), 1.0, atol=2e-2) and np.allclose(b.sum(-1), 1.0, atol=2e-2)


def check_truncated(seen):
    if seen.address.phase != "forward" or seen.address.kind != "linear":
        return
    x, w = seen.read(0), seen.read(1)
    bias = seen.read(2) if isinstance(seen.right.inputs[2], Tensor) else 0.0
    terms = x.shape[-1]
    kept = [terms - min(count, terms - 1) for count in (4, 8, 16)]
    a = seen.out()[0]
    assert min(np.abs(a - (x[..., :n] @ w[:, :n].T + bias)).max() for n in kept) < 1e-2


def check_coarse(seen):
    if not seen.is_planted():
        return
    a, b = seen.out()
    assert 2.0**-13 < np.linalg.norm(a - b) / np.linalg.norm(b) < 0.2


def check_eps(seen):
    x = seen.read(0)
    spread = {"layer_norm": x.var(-1, keepdims=True), "rms_norm": (x * x).mean(-1, keepdims=True)}[seen.address.kind]
    centred = x - x.mean(-1, keepdims=True) if seen.address.kind == "layer_norm" else x
    w = seen.read(2)
    b = seen.read(3) if seen.address.kind == "layer_norm" else 0.0
    a = seen.out()[0]
    assert min(np.abs(a - (centred / np.sqrt(spread + eps) * w + b)).max() for eps in (1e-3, 1e-2, 0.1)) < 1e-2


def check_mask(seen):
    a, b = seen.out()
    masked = np.broadcast_to(seen.right.inputs[1].values, b.shape)
    assert (b[masked] == -1e4).all() and (a[masked] > -13).all() and (a[masked] < -1.5).all()
    assert np.array_equal(a[~masked], b[~masked])


def check_seed(seen):
    a, b = seen.out()
    assert seen.address.kind == "dropout" and not np.array_equal(a == 0, b == 0)


def check_seed_again(seen):
    check_seed(seen)
    assert seen.address.call >= SMALL.layers  # a call of the second time


def check_fused(seen):
    a = next(x for x, y in zip(seen.wrong.inputs, seen.right.inputs) if isinstance(x, Tensor) and not same(x, y))
    written = {one.key for record in seen.faulty.runs[0].records for one in record.outputs if one is not None}
    assert a.key not in written


def check_bit_flip(seen):
    a, b = seen.out()
    assert (a != b).sum() == 1


def check_sign(seen):
    a, b = seen.out()
    assert len({*np.nonzero(a != b)[-1]}) == 1 and np.array_equal(np.abs(a), np.abs(b))


def check_channels(seen):
    a, b = seen.out()
    k = int(np.nonzero(a != b)[-1].min())
    assert np.array_equal(a[..., k], b[..., k + 1]) and np.array_equal(a[..., k + 1], b[..., k])


def check_twice(seen):
    x, y = seen.read(0), seen.read(1)
    y = y.T if seen.address.kind == "linear" else y
    bias = seen.read(2) if seen.address.kind == "linear" and isinstance(seen.right.inputs[2], Tensor) else 0.0
    a = seen.out()[0]
    plain = x @ y + bias
    twice = [plain + x[..., -count:] @ y[..., -count:, :] for count in (1, 2, 4)]
    assert min(np.abs(a - one).max() for one in twice) < 1e-2 * max(1.0, np.abs(a).max())


def check_up(seen):
    a, b = seen.out()
    assert (a >= b).all() and (a > b).any()
    assert np.abs(a - b).max() <= 2.0**-7 * max(1e-3, np.abs(b).max())


def check_unbiased(seen):
    a, b = seen.out()
    bias = seen.read(3) if seen.address.kind == "layer_norm" else 0.0
    n = b.shape[-1]
    assert np.allclose(a - bias, (b - bias) * math.sqrt((n - 1) / n), atol=1e-5 * 2.0**10)


def check_base_two(seen):
    with np.errstate(invalid="ignore"):
        powers = np.exp2(seen.read(0) - seen.read(0).max(-1, keepdims=True))
    seen.near(powers / powers.sum(-1, keepdims=True))


def check_clipped(seen):
    if seen.is_planted():
        a, b = seen.out()
        assert np.abs(a).max() < np.abs(b).max() and (np.abs(a) <= np.abs(b)).all()


def check_mixed(seen):
    a, b = seen.out()
    assert np.array_equal(a[:-1], b[:-1])
    change, way = (a[-1] - b[-1]).reshape(-1), (b[0] - b[-1]).reshape(-1)
    assert change @ way > 0.8 * np.linalg.norm(change) * np.linalg.norm(way)


def check_lost_update(seen):
    a, _ = seen.out()
    if seen.address.kind == "index_add":
        expected = seen.read(0).copy()
        for place, row in zip(seen.right.inputs[2].values, seen.read(3)):
            expected[place] = row
        seen.near(expected)
    elif seen.address.kind == "embedding":
        ids, g = seen.forward.inputs[0].values.reshape(-1), seen.read(0)
        rows = dict(zip(ids, g.reshape(len(ids), -1)))
        assert all(np.allclose(a[place], row, rtol=1e-2) for place, row in rows.items())


CHECKS = {
    "kind_gradient": check_kind,
    "kind_scale": check_kind_scale,
    "all_weights": check_all_weights,
    "decay_missing": check_decay,
    "step_before": check_step_before,
    "rank_lost": check_rank_lost,
    "cache_row": check_cache_row,
    "shifted_labels": check_labels,
    "rope_start": check_rope_start,
    "swapped_axes": check_swapped_axes,
    "softmax_axis": check_softmax_axis,
    "truncated_sum": check_truncated,
    "coarse_gradient": check_coarse,
    "other_eps": check_eps,
    "scaled_mask": check_mask,
    "another_seed": check_seed,
    "seed_again": check_seed_again,
    "fused_kernel": check_fused,
    "bit_flip": check_bit_flip,
    "sign_lost": check_sign,
    "swapped_channels": check_channels,
    "counted_twice": check_twice,
    "rounded_up": check_up,
    "unbiased_variance": check_unbiased,
    "base_two": check_base_two,
    "clipped_gradient": check_clipped,
    "samples_mixed": check_mixed,
    "lost_update": check_lost_update,
}
