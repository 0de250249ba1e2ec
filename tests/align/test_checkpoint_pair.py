"""The name of a pair of parameters."""

from npucmp.model import Payload
from npucmp.relations.weights.part import Part, add_part, changed
from npucmp.relations.weights.role import Role

EMBED, HEAD = Role(None, "embed", "weight"), Role(None, "head", "weight")


def part(name, shape=(4, 2), role=EMBED, **more):
    return Part(role, Payload(name, "float32", shape, 0), name, "file", "float32", **more)


def test_a_second_tensor_of_a_parameter_is_a_copy_or_has_a_role_of_its_own():
    parts = {}
    for one in (part("a"), part("b"), part("c", (4, 3)), part("d", role=HEAD), part("e")._replace(payload=None)):
        add_part(parts, one)
    assert {role.kind: one.name for role, one in parts.items()} == {"embed": "a", "=c ": "c", "head": "d", "=e ": "e"}
    assert [one.path for one in parts[EMBED].copies] == ["b"]


def test_a_part_in_another_order_has_its_copies_in_that_order():
    def turn(payload):
        return payload._replace(shape=payload.shape[::-1])

    copies = Payload("b", "float32", (4, 2), 0), Payload("c", "float32", (3, 3), 0)
    found = changed(part("a", shards=(copies[0],), copies=copies, words="old"), turn, "turned")
    assert (found.shape, found.shards, found.words) == ((2, 4), (), "turned")
    assert [one.shape for one in found.copies] == [(2, 4), (3, 3)]
    assert changed(part("a", words="old"), turn).words == "old"
    without = part("a")._replace(payload=None)
    assert changed(without, turn, "turned") == without and without.shape == ()
