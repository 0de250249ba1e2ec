"""Roots, findings and comparisons of runs that were put together from ranks, and the search of their
placements."""

from __future__ import annotations

from copy import copy

from npucmp.model import Cause, Comparison, Finding, Measurement, Pair, Root, Run, Verdict
from npucmp.model.relation import Placement, Relation
from npucmp.relations.ranks.placement import Fit

SHARD, COPIES = Placement("shard"), Placement("whole")


def decided(search, name, slot, error=None, held=None, **more):
    """A search that found something else of one tensor: the error, the placement along the first axis, the
    rest."""
    one = copy(search)
    one.found, one.part_errors = dict(search.found), {}
    known = one.found[name, slot]
    if error is not None or held is not None:
        best = known.fit or Fit(0.0, (COPIES, COPIES))
        placements = best.placements if held is None else (held, *best.placements[1:])
        more["fit"] = best._replace(error=best.error if error is None else error, placements=placements)
    one.found[name, slot] = known._replace(**more)
    return one


def pair_of(search, name, slot, ranks=None):
    """The golden's tensor beside the same one, put together from ranks."""
    golden = search.golden.by_name[name]
    ref = next(one.ref for one in golden.tensors if one.slot == slot)
    target = ref if ranks is None else ref._replace(relation=Relation(ranks, (SHARD,)))
    return Pair(golden.order, slot, golden.op, golden.op, target, ref, "name", 1.0)


def root_of(search, name, slot, cause=Cause.BORN, place=1):
    return Root(place, pair_of(search, name, slot), cause, slot, "rel_l2", 0.1, 1e-3, 0.0, 0.1, ())


def finding_of(search, name, slot, error, limit, verdict=Verdict.MATCH, ranks=(0, 1)):
    return Finding(Measurement(pair_of(search, name, slot, ranks)), verdict, "", error, limit, "rel_l2")


def comparison_of(search, findings, roots=()):
    run = Run("run", "npy", tuple(one.op for one in search.golden.operators))
    return Comparison(run, run, tuple(findings), tuple(roots), {})


def facts(root, kind):
    """The values in the sentences of one kind, in order."""
    own = [one.facts for one in root.evidence if one.kind == kind]
    return [{name: fact.value for name, fact in some.items()} for some in own]


def words(root, kind):
    return [one.sentence() for one in root.evidence if one.kind == kind]
