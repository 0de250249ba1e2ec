"""Let each call of the system fail once in small comparisons, and kill them: python -m tests.faults [options].

For each scenario, the nth call fails for n = 1, 2, … until none is left; `--every K` takes each Kth call from a random
first one. In half of the runs, another report lies in the folder before. Each fourth call ends the process too, and
each fourth read or write takes less than asked. The exit status is 1 if any run left a wrong report, a process or a
temporary file.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.faults.injection import IS_POSSIBLE, KINDS, Injector, Server, Trial
from tests.faults.scenarios import all_scenarios, small_scenarios


def disturb(injector: Injector, options: argparse.Namespace, chance: random.Random) -> Counter[str]:
    """Run the trials of one scenario; print problems, and return counts of outcomes."""
    found: Counter[str] = Counter()
    trials = [("fail", (kind,), 1) for kind in KINDS]
    trials += [("kill", ("read", "write", "name", "fork"), 4), ("short", ("read", "write"), 4)]
    for action, kinds, rarer in trials:
        if action not in options.actions:
            continue
        calls, step = injector.count(kinds, action), options.every * rarer
        for number, nth in enumerate(range(chance.randint(1, step), calls + 1, step)):
            trial = injector.fail(nth, kinds, action, bool(number % 2))
            note(found, f"{action} {'+'.join(kinds)} {nth} of {calls}", trial)
    for number in range(options.kills):
        trial = injector.kill(chance.uniform(0, injector.seconds), bool(number % 2))
        note(found, f"kill at random {number}", trial)
    return found


def note(found: Counter[str], what: str, trial: Trial) -> None:
    found["wrong" if trial.problems else f"status {trial.status}"] += 1
    if trial.problems:
        print(f"  {what}: {trial.name} at {trial.site}")
        for problem in trial.problems:
            print(f"    {problem}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take each Kth call")
    parser.add_argument("--kills", type=int, default=0, help="kills at random moments of each scenario")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scenario", action="append", help="one scenario by name; several times for several")
    parser.add_argument("--small", action="store_true", help="only the scenarios of the default suite")
    parser.add_argument("--actions", nargs="*", default=["fail", "kill", "short"])
    options = parser.parse_args()
    if not IS_POSSIBLE:
        print("no C compiler on a Linux system with glibc here: no call can be made to fail")
        return 0
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, Server(Path(name)) as server:
        place = Path(name)
        for scenario in (small_scenarios if options.small else all_scenarios)(place):
            if options.scenario and scenario.name not in options.scenario:
                continue
            started = time.monotonic()
            injector = Injector(scenario, place / "trials" / scenario.name, server)
            found = disturb(injector, options, random.Random(f"{options.seed}:{scenario.name}"))
            total += found
            outcomes = ", ".join(f"{count} {name}" for name, count in sorted(found.items()))
            took = time.monotonic() - started
            print(f"{scenario.name}: {sum(found.values())} trials: {outcomes}; {took:.0f} s", flush=True)
    print(f"{sum(total.values())} trials, {total['wrong']} wrong")
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
