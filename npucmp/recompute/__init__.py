"""One dump → what each of its operators should have made of its own inputs; it knows no second run.

task.py       a record and all that replaying it needs; Engine, what replays tasks
table.py      which calls are known, and how each is treated; npu_formulas.py has formulas for the vendor's own
arguments.py  a recorded call → arguments of a function; what is refused
torch_engine.py, torch_bind_call.py, rounding_noise.py, random_walk.py   the engine that torch is; only child processes
import it numpy_engine.py, numpy_table.py, noisy_ops.py     the engine that numpy is: operators of graphs, and calls
call_table.py, call_inputs.py, numpy_calls.py       calls of records and their gradients; formulas in call_*.py
error_budget.py     float64, what was dumped, and the rounding that is due → figures and a verdict
content_hash.py, data_flow.py     who reads what; gaps.py, gap_functions.py, permutations.py what fills a gap
torch_edges.py gradients against the sums of what consumers hand back
repro_case.py       one record as a folder that runs without npucmp; torch_case.py writes its tensors
run.py        tasks → rows, in children; kind_baseline.py what all operators of a kind have in common
"""
