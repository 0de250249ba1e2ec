"""The catalogue of Chinese messages: `python -m tests.catalogue` prints the messages without a translation; with
--update it writes the .po again, translations kept, and the .mo that npucmp reads. `--fill FILE` adds translations from
lines "message<TAB>translation" or "context<TAB>message<TAB>translation", and updates.

Messages stay plain strings where they are used. A message of Python code is a literal, an f-string or a template of
evidence with at least two words; {name} and {0}, {1} … are its values. Babel is needed only here.
"""

from __future__ import annotations

import ast
import io
import re
import string
import sys
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Iterator, Optional

from npucmp.report.page_words import WORDS, script_words, template_words

ROOT = Path(__file__).parents[1] / "npucmp"
FOLDER = ROOT / "locale" / "zh" / "LC_MESSAGES"
PO, MO = FOLDER / "npucmp.po", FOLDER / "npucmp.mo"
ROOMS = (
    "report commands localise health comparability overflows recompute token_parity judge workflows "
    "plans tickets reruns fusion follow three_runs model align relations measure flow dump cli.py errors.py"
).split(" ")
CODE = {  # modules whose strings are code, names or columns
    "recompute/repro_case.py", "recompute/case_files.py", "recompute/call_table.py", "report/network.py",
    "report/page_words.py", "report/chinese.py", "report/translation.py", "model/optypes.py", "model/table.py",
    "model/moments.py", "model/network.py", "model/__init__.py", "measure/kernel/native.py",
    "measure/kernel/library.py", "commands/help_formatter.py", "commands/man_page.py", "report/error_object.py",
    "report/sarif.py", "report/github_annotations.py", "report/markdown.py", "report/json_lines.py",
    "report/summary_types.py", "report/next_commands.py", "report/object_json.py",
}  # fmt: skip
SILENT = (  # functions whose arguments are not shown
    "split compile match search sub fullmatch findall finditer startswith endswith getattr hasattr setattr TypeVar "
    "namedtuple NewType cast encode loads import_module"
).split(" ")
CLICK = (  # messages of click, which reads the same catalogue by gettext
    "Usage:", "Options", "Arguments", "Commands", "Show this message and exit.", "Error", "Error: {message}",
    "Try '{command} {option}' for help.", "No such option: {name}", "No such option {name!r}.", "Missing argument",
    "Missing option", "Missing parameter", "Missing {param_type}", "Did you mean {possibility}?",
    "(Possible options: {possibilities})", "Invalid value: {message}", "Invalid value for {param_hint}: {message}",
    "Missing command.", "No such command {name!r}.", "{value!r} is not one of {choices}.",
    "{value!r} is not a valid {number_type}.", "{value} is not in the range {range}.", "default: {default}", "required",
    "[default: {default}]", "[required]", "Got unexpected extra argument ({args})",
    "Option {name!r} does not take a value.", "Option {name!r} requires an argument.", "env var: {var}", "(dynamic)",
    "Aborted!", "integer", "float",
)  # fmt: skip
VALUES = (  # single words that a message holds as a value
    "name", "order", "graph", "content", "mapping", "shape", "similarity", "path", "forward", "backward", "inputs",
    "outputs", "input", "output", "statistics", "values", "checksums", "parameters", "parameter", "tensors",
    "operators", "rows", "columns", "elements", "all", "none", "was", "were", "is", "are", "is not", "one", "others",
    "above", "below", "within", "differ", "differs", "begins", "ends", "with", "after", "has", "have", "does", "do",
    "need", "needs", "its", "their", "it", "them", "fused", "weights", "pattern", "structure", "similar", "value",
    "packed", "grows", "falls", "not", "first", "second", "left", "right", "row", "id", "lack", "lacks", "undecided",
    "unreadable", "missing", "whole", "temperature", "truth", "golden worse", "carried",
)  # fmt: skip
NOUNS = ("note",)  # nouns that the template of the page counts
COUNTED = {"count_of": 1}  # function → the index of the noun that it counts


def extract_python(
    file: BinaryIO, keywords: Any = (), comment_tags: Any = (), options: Any = None
) -> Iterator[tuple[int, Optional[str], Any, list[str]]]:
    """Yield the messages of a module, as Babel's extraction methods do."""
    nodes = [*ast.walk(ast.parse(file.read()))]
    silent, helps = _silent(nodes), _helps(nodes)
    for node in nodes:
        if id(node) in silent:
            continue
        if isinstance(node, ast.Call) and (noun := _noun(node)):
            yield node.lineno, "pgettext", ("count", noun), []
        if isinstance(node, (ast.JoinedStr, ast.Constant)):
            for words in _messages(node, id(node) in helps):
                yield node.lineno, None, words, []


def extract_template(
    file: BinaryIO, keywords: Any = (), comment_tags: Any = (), options: Any = None
) -> Iterator[tuple[int, None, str, list[str]]]:
    for words in template_words(file.read().decode()):
        yield 1, None, words, []


def extract_script(
    file: BinaryIO, keywords: Any = (), comment_tags: Any = (), options: Any = None
) -> Iterator[tuple[int, None, str, list[str]]]:
    for words in script_words(file.read().decode()):
        yield 1, None, words, []


def _noun(call: ast.Call) -> str:
    """Return the noun that a call counts, or ""."""
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    place = COUNTED.get(name)
    if place is None or len(call.args) <= place:
        return ""
    given = call.args[place]
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else ""


def _silent(nodes: list[ast.AST]) -> set[int]:
    """Return the nodes whose text is not shown: docstrings, types, patterns, keys, and the parts of f-strings."""
    found: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            found.update(id(one) for one in node.values if isinstance(one, ast.Constant))
        elif isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            found.update(map(id, ast.walk(node.format_spec)))
        elif isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
            found.update(map(id, ast.walk(node.annotation)))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
            found.update(map(id, ast.walk(node.returns)))
        elif isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.JoinedStr):
            found.update(map(id, ast.walk(node.slice)))
        elif isinstance(node, ast.Call):
            found.update(_silent_call(node))
    return found


def _silent_call(call: ast.Call) -> Iterator[int]:
    if isinstance(call.func, ast.Attribute):
        name, receiver = call.func.attr, [call.func.value] if call.func.attr in ("split", "join") else []
    else:
        name, receiver = getattr(call.func, "id", ""), []
    names = [one.value for one in call.keywords if one.arg in ("only", "without", "metavar", "python")]
    counted = call.args[COUNTED[name] :][:1] if name in COUNTED else []
    for one in (*receiver, *(call.args if name in SILENT else ()), *names, *counted):
        yield from map(id, ast.walk(one)) if isinstance(one, (ast.Constant, ast.JoinedStr)) else ()


def _helps(nodes: list[ast.AST]) -> set[int]:
    """Return the texts of options and commands."""
    found = {id(one.value) for one in nodes if isinstance(one, ast.keyword) and one.arg == "help"}
    for one in nodes:
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and one.targets[0].id == "HELP":
            found.add(id(one.value))
    return found


def _messages(node: ast.JoinedStr | ast.Constant, is_help: bool = False) -> Iterator[str]:
    text = _template(node)
    if text is None:
        return
    for part in pieces(text, is_help):
        if is_message(part):
            yield part


def pieces(text: str, is_help: bool = False) -> Iterator[str]:
    """Yield the messages of a text: lines, cells of a line, and whole paragraphs of a help."""
    for paragraph in re.split(r"\n\s*\n", text):
        if is_help and not paragraph.strip().startswith("\b"):
            yield " ".join(paragraph.split())
            continue
        for line in paragraph.split("\n"):
            yield from (cell if cell == line else cell.strip() for cell in re.split(" {2,}", line) if cell.strip())


def _template(node: ast.JoinedStr | ast.Constant) -> Optional[str]:
    """Return the text of a string with {name} and {0} for its values; None if it is no text."""
    if isinstance(node, ast.Constant):
        return _plain(node.value) if isinstance(node.value, str) else None
    text, count = "", 0
    for value in node.values:
        if isinstance(value, ast.FormattedValue):
            name = value.value.id if isinstance(value.value, ast.Name) else str(count)
            count += not isinstance(value.value, ast.Name)
            text += f"{{{name}}}"
        else:
            assert isinstance(value, ast.Constant)
            text += value.value
    return text


def _plain(text: str) -> str:
    """Return a literal; fields of a template lose their formats."""
    if "{" not in text:
        return text
    try:
        parts = [*string.Formatter().parse(text)]
    except ValueError:
        return text
    if any(field is not None and not re.fullmatch(r"\w+", field) for _, field, _, _ in parts):
        return text
    return "".join(before + (f"{{{field}}}" if field is not None else "") for before, field, _, _ in parts)


_COLUMNS = re.compile(r"[a-z0-9_]+( [a-z0-9_]+){3,}")
_CODE = re.compile(  # statements, markup, patterns, commands
    r"^\s*(import |from \w+ import|def |return |for \w+ in |if .*:$|#!|\w+ = |\w+\.\w+\(|@)|</|^<\w|\(\?|\\|^\W*$"
    r"|'none'|^[\w.]+\([^ ]*\)$|^npucmp [a-z-]+ (?![a-z ]+$)|^python [a-z]|^img-src|^base-uri|\[\^"
    r"|^-\*-|Mapping\[|Iterator\[|%\(|^\.\w|^  \w+:$"
)


def is_message(text: str) -> bool:
    """Return whether a string is shown to the user, by its form."""
    if not WORDS.search(text) or _CODE.search(text) or not re.search("[a-z]{2}", text):
        return False
    return not (_COLUMNS.fullmatch(text) and "_" in text)


@cache
def messages() -> Any:
    """Return Babel's catalogue of all messages of the code, without translations."""
    from babel.messages.catalog import Catalog

    found = Catalog(locale="zh", domain="npucmp", project="npucmp", charset="utf-8", fuzzy=False)
    for words in CLICK:
        found.add(words, locations=[("click", 0)])
    for words in NOUNS:
        found.add(words, context="count", locations=[("report/page/template.html", 0)])
    for words in VALUES:
        found.add(words, context="value", locations=[("values", 0)])
    for room in ROOMS:
        place = ROOT / room
        for file in [place] if place.is_file() else sorted(place.rglob("*.*")):
            name = file.relative_to(ROOT).as_posix()
            method = {".py": extract_python, ".html": extract_template, ".js": extract_script}.get(file.suffix)
            if method is None or name in CODE:
                continue
            with file.open("rb") as opened:
                for _, function, words, _ in method(opened):
                    context, text = words if function == "pgettext" else (None, words)
                    found.add(text, context=context, locations=[(name, 0)])
    return found


def read() -> Any:
    """Return the catalogue of the .po file; an empty one if there is none."""
    from babel.messages.catalog import Catalog
    from babel.messages.pofile import read_po

    if not PO.is_file():
        return Catalog(locale="zh")
    with PO.open("rb") as file:
        return read_po(file, locale="zh")


def key(message: Any) -> tuple[Optional[str], str]:
    return message.context, message.id


def updated(known: Any) -> Any:
    """Return the messages of the code with the translations of a catalogue."""
    found = messages()
    old = {key(one): one.string for one in known if one.id}
    for one in found:
        one.string = old.get(key(one), "") if one.id else one.string
    return found


def compiled(catalogue: Any) -> bytes:
    """Return the .mo of a catalogue: only its translations and the encoding, so that no date and no version of Babel
    changes it."""
    from babel.messages.catalog import Catalog
    from babel.messages.mofile import write_mo

    class Plain(Catalog):
        @property
        def mime_headers(self) -> Any:
            return [("Language", "zh"), ("Content-Type", "text/plain; charset=utf-8")]

        @mime_headers.setter
        def mime_headers(self, headers: Any) -> None:
            pass

    plain, file = Plain(locale="zh", fuzzy=False), io.BytesIO()
    for one in catalogue:
        if one.id and one.string:
            plain.add(one.id, one.string, context=one.context)
    write_mo(file, plain)
    return file.getvalue()


def written(catalogue: Any) -> bytes:
    """Return the .po of a catalogue, without dates, so that it changes only with its messages."""
    from babel.messages.pofile import write_po

    file = io.BytesIO()
    write_po(file, catalogue, width=120, omit_header=True, sort_by_file=False, include_lineno=False)
    head = 'msgid ""\nmsgstr ""\n"Language: zh\\n"\n"Content-Type: text/plain; charset=utf-8\\n"\n\n'
    return head.encode() + file.getvalue()


def _cells(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else []


def main(arguments: list[str]) -> int:
    found = updated(read())
    if "--fill" in arguments:
        lines = Path(arguments[arguments.index("--fill") + 1]).read_text(encoding="utf-8").splitlines()
        given = {(words[-3] if len(words) > 2 else None, words[-2]): words[-1] for words in map(_cells, lines) if words}
        for one in found:
            one.string = given.get(key(one), one.string) if one.id else one.string
    open_ = [one for one in found if one.id and not one.string]
    if {"--update", "--fill"} & {*arguments}:
        FOLDER.mkdir(parents=True, exist_ok=True)
        PO.write_bytes(written(found))
        MO.write_bytes(compiled(read()))
    for one in open_:
        print(f"{one.locations[0][0]}: {f'({one.context}) ' if one.context else ''}{one.id!r}")
    print(f"{len(found)} messages, {len(open_)} without a translation")
    return bool(open_)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
