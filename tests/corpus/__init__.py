"""A corpus of planted faults and the score sheet that npucmp is held to; `python -m tests.corpus --help`.

    trace        what a run leaves: tensors and records          device       numbers as a device computes them
    operators    what is computed, and the gradients             tape         runs a network, records it, goes back
    networks     the networks        ranks   between ranks       training     steps, SGD and AdamW
    faults       the kinds of fault                              draw         what a family is made of
    truth        what is right to say of a faulty run            planter      families of cases
    second_networks, second_faults, second_draw                  the second generation, for open2 and held2
    unseen       networks and kinds of fault of a domain of their own
    writers/     dumps on disk       spelling  their names       subject      what npucmp says
    score        grades              sheet   counts, tables
    constants    the numbers of npucmp that decide           sensitivity  the sheet with one of them at other values
    judged_again what half and twice of each change
    real/        makes real dumps    real_pairs  grades them     sheets/      the kept sheets

All above `subject` imports numpy alone, constants.py nothing. against_torch.py holds the networks against torch; it is
run by hand.

To add a fault, write a function and a row of FAULTS in faults.py: where it can occur, and its effect. A clean variation
is a row of VARIATIONS in draw.py: options of target and golden; a new option is a line of DEFAULTS in networks.py and
one where it acts. A network is a function and a row of OPEN or HELD in networks.py; an operator a class in
operators.py (forward and gradient), a row of spelling.py and a function of torch in against_torch.py; a law between
pairs a function and a row of LAWS in pair_search/laws.py; a format a module in writers/ with `write(folder, runs)` and
`names(run)`; a tool of the public benchmark a module in bench/adapters/ with DATA and `accuse(target, golden)`. A new
kind changes what the seeds draw: make the kept sheets again in the same commit. A fault that only a real framework
makes is a row of real/tables.py.
"""
