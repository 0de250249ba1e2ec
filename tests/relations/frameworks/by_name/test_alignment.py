"""The operators of two frameworks that are lined up by paths, functions and order, and why others are open."""

from __future__ import annotations

from npucmp.align.msprobe_mapping import Api, MsprobeMapping
from npucmp.dump.limits import ANYWHERE
from npucmp.model import Match, Operator, TensorRef
from npucmp.relations.frameworks.by_name.alignment import line_up
from tests.align.craft import a_run

WIDE = (4, 8)


def tensors(name, reads, writes, statistics=None):
    some = [(f"input:{at}", one) for at, one in enumerate(reads)] + [
        (f"output:{at}", one) for at, one in enumerate(writes)
    ]
    return tuple(
        TensorRef(slot, "float32", shape, label=f"{name} {slot}", statistics=statistics) for slot, shape in some
    )


def function(name, number=0, around="", writes=(WIDE,), prefix="Torch", statistics=None):
    full = f"{prefix}.{name}.{number}.forward"
    scope = f"{'Cell' if prefix == 'Mint' else 'Module'}.{around}.Block.forward.0" if around else ""
    return Operator(full, name, f"{prefix}.{name}.forward", "forward", 0, tensors(full, (WIDE,), writes, statistics),
                    call=full, scope=scope, unique=False)  # fmt: skip


def run(*operators):
    return a_run([one._replace(order=order) for order, one in enumerate(operators)])


def lined_up(target, golden, mapped=(), vendor=MsprobeMapping()):
    return line_up(run(*target), run(*golden), mapped, vendor, ANYWHERE)


# Mappings of a user


def test_matches_that_a_user_gave_are_kept_with_the_slots_of_the_mapping():
    target, golden = function("one", prefix="Mint"), function("other")
    given = [Match(target, golden, "mapping", 1.0)]
    assert lined_up([target], [golden], given).matches == given
    vendor = MsprobeMapping(apis={target.name: Api(target.name, "Torch.other", {"input:0": "input:0"}, ("input",))})
    (found,) = lined_up([target], [golden], given, vendor).matches
    assert found.settled and [one.slot for one in found.golden.tensors] == ["input:0", "output:0"]
    assert [one.label for one in found.golden.tensors] == [one.label for one in golden.tensors]
