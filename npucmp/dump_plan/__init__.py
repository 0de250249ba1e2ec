"""The dump that answers a question: which files, lines and commands make it, how large it gets, and what one lacks.

questions.py has what each question needs of a dump, frameworks/ one file per framework, configs.py the files of their
tools; recorded.py and growing.py ask for operators of an earlier dump and count what they take, for `npucmp plan` and
for next_dump.json alike; fit.py holds a dump against a question. Nothing here opens a dump or writes a file.
"""
