"""Recompute the operators of a dump from their own inputs. No second run is needed.

task.py       a record and the data that its replay needs; engine.py, which replays tasks by numpy or torch
table.py      calls that can be replayed, and their treatment
arguments.py  a recorded call → arguments of a function; refusals
call_table.py, call_inputs.py, bound_call.py   calls of records and their gradients; formulas in call_*.py
numpy_table.py, numpy_inputs.py   operators of graphs; formulas in numpy_*.py
noisy_ops.py  the arithmetic of formulas, exact or with the noise of rounding
torch_functions.py, rounding_noise.py   torch's functions as formulas; only children import them
computation.py   a record → its results in float64; row_blocks.py, sampled_products.py of large ones
replayed_rows.py, error_budget.py   results and expected rounding → figures and a verdict; hypotheses.py explains it
data_flow.py     producers and consumers; gaps.py, permutations.py fill gaps
gradient_edges.py   gradients against the sums of the gradients that consumers return
repro_case.py    one record as a folder that runs without npucmp; case_files.py writes its tensors
run.py        tasks → rows, in child processes; kind_baseline.py finds errors that a kind of operators shares
"""
