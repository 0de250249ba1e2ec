"""Recompute the operators of a dump from their own inputs. No second run is needed.

task.py       a record and the data that its replay needs; Engine, which replays tasks
table.py      calls that can be replayed, and their treatment; npu_formulas.py has formulas of the vendor's operators
arguments.py  a recorded call → arguments of a function; refusals
torch_engine.py, torch_bind_call.py, rounding_noise.py   the torch engine; only children import it
numpy_engine.py, numpy_table.py, noisy_ops.py     the numpy engine: operators of graphs, and calls
call_table.py, call_inputs.py, numpy_calls.py       calls of records and their gradients; formulas in call_*.py
error_budget.py     float64, dumped values and expected rounding → figures and a verdict
data_flow.py     producers and consumers; gaps.py, permutations.py fill gaps
torch_edges.py gradients against the sums of the gradients that consumers return
repro_case.py       one record as a folder that runs without npucmp; torch_case.py writes its tensors
run.py        tasks → rows, in child processes; kind_baseline.py finds errors that a kind of operators shares
"""
