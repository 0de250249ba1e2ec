"""Golden answers: what npucmp answers to some hundred pairs, kept in sheets/CORPUS.jsonl, a line for each pair.

A change of the alignment, of a judgement or of a sentence shows as a difference of these lines.

python -m tests.corpus.answers                     compare all pairs; exit status 1 if an answer is not the kept one
python -m tests.corpus.answers 'bench/*'           compare the pairs that the pattern matches
python -m tests.corpus.answers --accept 'bench/*'  keep the answers of these pairs, after you have read the difference

pairs.py names the pairs and writes them, command_lines.py runs command lines; record.py says what is kept of an answer,
sheets.py keeps it. draw.py chose the pairs by the branches that they run.
"""
