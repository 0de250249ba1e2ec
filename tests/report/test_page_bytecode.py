"""The compiled template of the page is kept as Python keeps its bytecode."""

import sys

import jinja2
import pytest

from npucmp.report.page_bytecode import compiled


class Shell(jinja2.Environment):
    """An environment that counts what it compiles."""

    count = 0

    def compile(self, source):
        self.count += 1
        return super().compile(source)


def shown(shell, source, place):
    code = compiled(shell, source, place)
    return shell.template_class.from_code(shell, code, shell.make_globals(None)).render(name="x")


@pytest.fixture
def writes(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)


def test_a_template_is_compiled_once(tmp_path, writes):
    shell, place = Shell(), tmp_path / "page" / "template.html"
    assert [shown(shell, "a {{ name }}", place) for _ in range(3)] == ["a x"] * 3 and shell.count == 1
    assert shown(shell, "b {{ name }}", place) == "b x" and shell.count == 2  # the template has changed
    assert [one.name.split(".")[0] for one in (tmp_path / "page" / "__pycache__").iterdir()] == ["template"]


def test_a_damaged_file_is_written_again(tmp_path, writes):
    shell, place = Shell(), tmp_path / "template.html"
    shown(shell, "a {{ name }}", place)
    (file,) = (tmp_path / "__pycache__").iterdir()
    file.write_bytes(file.read_bytes()[:40])
    assert shown(shell, "a {{ name }}", place) == "a x" and shell.count == 2


def test_nothing_is_written_where_python_writes_nothing(tmp_path, writes, monkeypatch):
    (tmp_path / "file").write_text("")
    assert shown(Shell(), "a {{ name }}", tmp_path / "file" / "template.html") == "a x"  # no folder can be made
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert shown(Shell(), "a {{ name }}", tmp_path / "template.html") == "a x"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
