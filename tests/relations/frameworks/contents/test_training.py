"""Training runs of two codings: gradients line up through the forward tensors of which they are the gradients."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp
from tests.corpus.device import Device
from tests.corpus.tape import Precision, Session, Tape
from tests.corpus.writers import cann, mindspore, msprobe

TOKENS, WIDTH, INNER, LAYERS = 6, 16, 24, 2


class Network:
    """Residual blocks with a norm and two products, as one coding or the other: `parts` spells the norm in eight
    operators and adds biases apart. `wrong` multiplies the gradient of the activation of the first block."""

    def __init__(self, parts, wrong=1.0):
        self.session = Session(Device(32), Precision())
        self.tape, self.parts, self.wrong = Tape(self.session), parts, wrong
        self.rng = np.random.default_rng(0)

    def weight(self, name, *shape, offset=0.0):
        return self.tape.weight(name, offset + 0.3 * self.rng.standard_normal(shape))

    def norm(self, name, x):
        t, gain = self.tape, self.weight(f"{name}.weight", WIDTH, offset=1.0)
        bias = self.weight(f"{name}.bias", WIDTH)
        if not self.parts:
            return t("layer_norm", x, (WIDTH,), gain, bias, 1e-5)
        centred = t("sub", x, t("mean", x, dim=-1, keepdim=True))
        variance = t("mean", t("mul", centred, centred), dim=-1, keepdim=True)
        scaled = t("mul", centred, t("rsqrt", t("add", variance, 1e-5)))
        return t("add", t("mul", scaled, gain), bias)

    def product(self, name, x, rows, columns):
        t, weight = self.tape, self.weight(f"{name}.weight", rows, columns)
        bias = self.weight(f"{name}.bias", rows)
        return t("add", t("linear", x, weight), bias) if self.parts else t("linear", x, weight, bias)

    def written(self, folder, writer=msprobe):
        t = self.tape
        x = t.constant(self.rng.standard_normal((TOKENS, WIDTH)))
        for layer in range(LAYERS):
            h = self.product(f"{layer}.up", self.norm(f"{layer}.norm", x), INNER, WIDTH)
            h = t("gelu", h)
            if layer == 0:
                h = t.view(h, lambda v: v, lambda g: g * self.wrong)
            x = t("add", x, self.product(f"{layer}.down", h, WIDTH, INNER))
        loss = t("sum", t("mul", x, t.constant(self.rng.standard_normal((TOKENS, WIDTH)))), dim=(0, 1))
        self.session.backward([loss])
        writer.write(folder, self.session.runs())
        return folder


def compared(folder, writer=msprobe, **options):
    target = Network(True, **options).written(folder / "target", writer)
    return npucmp.compare(target, Network(False).written(folder / "golden"), align="content", precheck=False, jobs=1)


@pytest.mark.parametrize("writer", [msprobe, cann, mindspore], ids=["msprobe", "cann", "mindspore"])
def test_a_wrong_gradient_is_found_where_it_begins(tmp_path, writer):
    first = compared(tmp_path, writer, wrong=1.1).roots[0].pair
    assert "gelu" in first.operator.name.lower() and "gelu.0.backward" in first.golden_op.name
