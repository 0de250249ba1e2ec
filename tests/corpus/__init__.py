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
"""
