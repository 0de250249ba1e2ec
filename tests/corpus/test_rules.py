"""Each rule is needed: without it, one pair of the corpus is answered otherwise than it should be."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp
from npucmp.localise.rules import RULES
from tests.corpus import score
from tests.corpus.planter import family
from tests.corpus.subject import asked
from tests.localise.rules.test_untied import APART, SHARED, tied
from tests.localise.test_search import quantised_pair
from tests.synthetic import write_run

PAIRS = {  # rule → a pair that it decides
    "round_off": "sample/0/clean0",
    "reduced": "sample/48/clean",
    "reduced_alike": "open2/31/clean",
    "growth": "sample/1/clean",
    "non_smooth": "open/21/clean",
    "choice": "sample/20/clean",
    "cancellation": "sample/0/clean",
    "scaled": "open/114/7",
    "arguments": "open/567/2",
    "equal_bits": "open/23/11",
    "inherited": "open/99/clean",
    "coarser": "open/318/4",
    "common_factor": "open2/21/12",
    "routed": "open/51/clean",
    "background": "sample/1/clean",
    "meaningless": "open/29/clean",
    "suspected": "open/211/7",
}
GOOD = ("right", "silent")
SEED = 5
random = np.random.default_rng(SEED)


def normal(*shape, dtype=np.float32, size=1.0):
    return (size * random.standard_normal(shape)).astype(dtype)


def off(x, error):
    """x in its own type, off by that rel_l2."""
    return (x + error * np.sqrt(np.mean(x.astype(float) ** 2)) * random.standard_normal(x.shape)).astype(x.dtype)


def one_operator(name, reads, wrote):
    """(target, golden) of an operator; each tensor is (target, golden)."""
    return tuple({name: {"in": [one[side] for one in reads], "out": [wrote[side]]}} for side in (0, 1))


def long_sums():
    x, w = np.abs(normal(8, 4096)), np.abs(normal(4096, 8))
    y = x @ w
    return one_operator("Functional.linear.0.forward", [(x, x), (w, w)], (off(y, 15 * 2.0**-24), y))


def subnormal():
    x, y = normal(64, 64, dtype=np.float16), normal(64, 64, dtype=np.float16, size=1e-6)
    return one_operator("Functional.linear.0.backward", [(off(x, 1e-3), x)], (off(y, 0.02), y))


def condition():
    x = 10 * normal(64, 64)
    y = np.exp(x)  # an error of every element by itself: none falls below 0
    return one_operator("Torch.exp.0.forward", [(off(x, 4e-7), x)], (y * (1 + 1.5e-5 * np.sign(normal(64, 64))), y))


def constant_rows():
    x, y = np.full((8, 64), np.float32(100)), normal(8, 64, size=1e-3)
    return one_operator("Functional.layer_norm.0.forward", [(x, x)], (off(y, 0.5), y))


def copy():
    x = normal(64, 64)
    return one_operator("Tensor.clone.0.forward", [(off(x, 2e-7), x)], (off(x, 4e-7), x))


def lost_tile():
    x, y = normal(1024, 1024, dtype=np.float16), normal(1024, 1024, dtype=np.float16)
    lost = off(y, 3e-4)
    lost[700, 300] += 3.2
    return one_operator("Functional.linear.0.forward", [(off(x, 1e-3), x)], (lost, y))


def single_element():
    x, y = normal(256, 256), normal(256, 256)
    wrong = y.copy()
    wrong[70, 30] += np.float32(5e-5)
    return one_operator("Functional.linear.0.forward", [(x, x)], (wrong, y))


def law():
    x = normal(8, 32, 32, dtype=np.float16, size=4)
    y = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    y /= y.sum(-1, keepdims=True)
    return one_operator(
        "Functional.softmax.0.forward", [(off(x, 3.8e-3), x)], ((1.006 * y).astype(np.float16), y.astype(np.float16))
    )


def gradual():
    values, jitter = [normal(8, 8) for _ in range(17)], normal(8, 8, dtype=np.float64)

    def run(noise):
        x = [(value * (1 + noise * 2.5**i * jitter)).astype(np.float32) for i, value in enumerate(values)]
        return {f"Torch.mystery.{i}.forward": {"in": [x[i]], "out": [x[i + 1]]} for i in range(16)}

    return run(1e-7), run(0.0)


def behind_root():
    x = [normal(32, 32, dtype=np.float16) for _ in range(5)]

    def run(errors):
        y = [off(one, error) if error else one for one, error in zip(x, errors)]
        return {f"Functional.linear.{n}.forward": {"in": [y[n]], "out": [y[n + 1]]} for n in range(4)}

    return run((0, 0.2, 1e-3, 0.02, 0.02)), run((0,) * 5)


def overwritten():
    x, y = normal(32, 32), normal(32, 32)
    wrong = off(y, 1e-3)
    return one_operator("Tensor.add_.0.forward", [(wrong, y), (x, x)], (wrong, y))


def container():
    x, y = normal(8, 8), normal(8, 8)
    inner, outer = "Cell.block.softmax.Softmax.forward.0", "Cell.block.Attention.forward.0"
    return tuple({inner: {"in": [x], "out": [z]}, outer: {"in": [x], "out": [z + z]}} for z in (off(y, 0.1), y))


def collective():
    """By rank: the second puts in what a fault made of it; the first gets the part that is small, and wrong."""
    x = [normal(8, 8) for _ in range(2)]
    y = [np.concatenate([normal(4, 8) * np.float32(1e-3), normal(4, 8)]) for _ in range(2)]

    def rank(number, wrong):
        sent = [y[0], np.concatenate([off(y[1][:4], 0.1) if wrong else y[1][:4], y[1][4:]])]
        half = slice(4) if number == 0 else slice(4, 8)
        out = np.concatenate([one[half] for one in sent])
        return {
            "Functional.gelu.0.forward": {"in": [x[number]], "out": [sent[number]]},
            "Distributed.all_to_all_single.0.forward": {"in": [out, sent[number]], "out": [out]},
        }

    random.bit_generator.state = (state := random.bit_generator.state)
    target = []
    for number in range(2):
        random.bit_generator.state = state  # the same fault on both
        target.append(rank(number, True))
    return target, [rank(number, False) for number in range(2)]


def broadcast():
    """The target reads a mask once, the golden once for each sample."""
    x, mask = normal(2, 8, 8), normal(8, 8)
    y = x + mask
    return one_operator("Torch.add.0.forward", [(x, x), (mask, np.stack([mask, mask]))], (y, y))


def given():
    x, w = normal(8, 64, dtype=np.float16), normal(64, 64, dtype=np.float16)
    target = off(w, 2e-3)
    wrote = tuple((x.astype(np.float32) @ one.astype(np.float32)).astype(np.float16) for one in (target, w))
    return one_operator("Functional.linear.0.forward", [(x, x), (target, w)], wrote)


BY_HAND = {  # rule → a pair that the corpus does not draw, and the causes of the operators to be looked at
    "long_sums": (long_sums, []),
    "subnormal": (subnormal, []),
    "quantised": (quantised_pair, []),
    "condition": (condition, []),
    "constant_rows": (constant_rows, []),
    "copy": (copy, ["BORN"]),
    "lost_tile": (lost_tile, ["BORN"]),
    "single_element": (single_element, ["BORN"]),
    "law": (law, ["BORN"]),
    "gradual": (gradual, ["WORSENED"]),
    "behind_root": (behind_root, ["BORN"]),
    "overwritten": (overwritten, ["BORN"]),
    "container": (container, ["BORN"]),
    "collective": (collective, ["BORN"]),
    "broadcast": (broadcast, []),
    "given": (given, ["GAP"]),
    "untied": (lambda: (tuple(tied(SHARED, APART)), tuple(tied(SHARED, SHARED))), ["GAP"]),
}


def test_every_rule_has_a_pair():
    assert set(PAIRS) | set(BY_HAND) == {rule.name for rule in RULES}


@pytest.mark.few(2)
@pytest.mark.parametrize("rule", PAIRS)
def test_without_the_rule_the_pair_is_answered_otherwise(tmp_path, rule):
    domain, number, _ = PAIRS[rule].split("/")
    some = family(domain, int(number), 4)
    [case] = [one for one in some.cases if one.name == PAIRS[rule]]
    score.write(tmp_path / "golden", some.golden, some.style)
    score.write(tmp_path / "target", case.target, some.style)
    names = score.accepted_names(case, some.golden, some.style)
    said = [
        score.grade(asked(tmp_path / "target", tmp_path / "golden", skip, "none"), case.truth, names)
        for skip in ((), (rule,))
    ]
    assert said[0] in GOOD and said[1] not in GOOD, said


@pytest.mark.parametrize("rule", BY_HAND)
def test_without_the_rule_so_is_one_made_by_hand(tmp_path, rule):
    make, causes = BY_HAND[rule]
    random.bit_generator.state = np.random.default_rng(SEED).bit_generator.state  # in any order of the tests
    target, golden = (_written(tmp_path / side, run) for side, run in zip(("target", "golden"), make()))
    assert _suspects(target, golden, ()) == causes
    assert _suspects(target, golden, (rule,)) != causes


def _written(folder, run):
    """A run, a list of ranks or a tuple of steps."""
    for number, one in enumerate([run] if isinstance(run, dict) else run):
        write_run(folder, one, number * isinstance(run, tuple), number if isinstance(run, list) else None)
    return folder


def _suspects(target, golden, skip):
    roots = npucmp.compare(target, golden, skip_rules=skip).roots
    return [root.cause.value for root in roots if root.cause.value != "PROPAGATED"]
