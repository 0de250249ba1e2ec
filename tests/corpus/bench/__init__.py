"""A public benchmark of tools that compare dumps: pairs from a seed, truths, adapters of tools, a scorer.

    networks           families on one rank; parallel_networks: one on several ranks, with the bugs of parallel training
    faults, training   faults of one operator, and of a training script
    truth, pairs       which operators are right to name, and how a pair is drawn
    dumps              target/, golden/ and manifest.json
    adapters           one tool each: the operators that it accuses
    run, score         the seconds and memory of each tool, and the table; score.py runs alone

docs/benchmark.md has the commands and the figures. Nothing but adapters/npucmp.py imports npucmp.
"""
