"""Plain words in documents, docstrings, comments and messages (Prose in docs/CONTRIBUTING.md).

``python tests/test_prose.py PATH...`` lists the sentences to rewrite in some modules or documents.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path
from typing import Iterator

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = re.compile(
    r"\b(tells?|told|telling|(held|holds?|holding) (\S+ )?against|(stands?|stood|standing) for|nobody"
    r"|as it is|as they are|be it|be they|be there|whereof|wherefrom|no two \w+ are one|is none of)\b",
    re.IGNORECASE,
)
BEGINNING = re.compile(r"(Of|What|Who|That|Those|Whatever)\b(?! is\b.{0,3}$)")
MESSAGE_BEGINNING = re.compile(r"(Of|What|what|Who|who|That|Those|those|Whatever|whatever)\b ")
SENTENCE_END = re.compile(r"(?<=[.:;!?])\s+")
WORDS = re.compile(r"[A-Za-z]{2,}[ ,;:]+[a-z]{1,}[ ,;:.]+[a-z]{1,}")  # three words: a sentence, not a key


def offences(text: str, beginning: re.Pattern[str]) -> Iterator[str]:
    """Sentences of a paragraph that break a rule; questions and quoted words are exempt."""
    text = re.sub(r"``.*?``|`[^`]*`|“[^”]*”|\"[^\"]*\"", "X", " ".join(text.split()))
    for sentence in re.split(r"(?<=[.!?])\s+", text):
        bare = sentence.lstrip("-*#>(|0123456789. ")
        if not sentence.endswith("?") and (beginning.match(bare) or FORBIDDEN.search(sentence)):
            yield sentence


def paragraphs(document: str) -> Iterator[str]:
    """Paragraphs, headings and list items of a Markdown document; fences, tables and quotations are left out."""
    document = re.sub(r"^(```|~~~).*?^\1[^\n]*$", "", document, flags=re.MULTILINE | re.DOTALL)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*#]|\d+\.) )", document):
        if not block.lstrip().startswith(("|", ">", "<")):
            yield re.sub(r"^\s*\|.*$", "", block, flags=re.MULTILINE)


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            constant = node.body[0].value if isinstance(node.body[0], ast.Expr) else None
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                yield constant


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Literals of three words and more, with X for what a formatted string puts in."""
    inner = {id(one) for one in docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inner |= {id(one) for one in ast.walk(node) if isinstance(one, ast.Constant)}
            text = "".join(str(one.value) if isinstance(one, ast.Constant) else "X" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            text = node.value
        else:
            continue
        if WORDS.search(text):
            yield node.lineno, text


def in_module(path: Path) -> Iterator[str]:
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    for doc in docstrings(tree):
        for block in re.split(r"\n\s*\n", doc.value):
            for sentence in offences(block, BEGINNING):
                yield f"{path}:{doc.lineno}: docstring: {sentence}"
    for line, text in messages(tree):
        for sentence in offences(text, MESSAGE_BEGINNING):
            yield f"{path}:{line}: message: {sentence}"
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            for sentence in offences(token.string.lstrip("# "), BEGINNING):
                yield f"{path}:{token.start[0]}: comment: {sentence}"


def in_document(path: Path) -> Iterator[str]:
    for block in paragraphs(path.read_text("utf-8")):
        for sentence in offences(block, BEGINNING):
            yield f"{path}: {sentence}"


def in_path(path: Path) -> Iterator[str]:
    if path.is_dir():
        for one in sorted(path.rglob("*.py")):
            yield from in_module(one)
    elif path.suffix == ".py":
        yield from in_module(path)
    else:
        yield from in_document(path)


@pytest.mark.lint
def test_documents_are_plain() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    assert [one for page in pages if not page.name.endswith(".zh.md") for one in in_document(page)] == []


@pytest.mark.lint
def test_docstrings_comments_and_messages_are_plain() -> None:
    assert list(in_path(ROOT / "npucmp")) == []


def test_the_word_lists_find_what_they_name() -> None:
    found = [*offences("Of FX graphs the names are read. The reader reads names.", BEGINNING)]
    found += offences("what its forward saved differs", MESSAGE_BEGINNING)
    found += offences("The shape tells how many. It is held against it", BEGINNING)
    assert found == [
        "Of FX graphs the names are read.",
        "what its forward saved differs",
        "The shape tells how many.",
        "It is held against it",
    ]
    assert list(offences('What does it say? It says "nobody".', BEGINNING)) == []


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for offence in in_path(Path(name)):
            print(offence)
