"""Plan the dump that answers a question: its files, script lines, commands and size, and what an existing dump lacks.

questions.py lists what each question needs of a dump, frameworks/ has one module per framework, configs.py makes the
files of their tools; recorded.py and growing.py select operators of an earlier dump and count their size, for
`npucmp plan` and for next_dump.json alike; fit.py compares a dump with the needs of a question. This package opens no
dump and writes no file.
"""
