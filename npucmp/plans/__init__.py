"""Plan the dump that answers a question: its files, script lines, commands and size, and what an existing dump lacks.

request.py lists what each question needs of a dump, frameworks/ has one module per framework, tool_configs.py makes the
files of their tools; dump_config.py selects operators of an earlier dump and counts their size, for `npucmp plan` and
for next_dump.json alike; sufficiency.py compares a dump with the needs of a question. This package opens no dump and
writes no file.
"""
