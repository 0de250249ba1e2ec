"""The manual page is that of the commands, and roff reads it without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess

import click
import pytest

from npucmp.cli import npucmp as group
from npucmp.commands.man_page import man_page

SECTIONS = "NAME SYNOPSIS DESCRIPTION COMMANDS OPTIONS EXIT_STATUS ENVIRONMENT FILES EXAMPLES"


def test_the_page_has_every_section_command_and_option():
    text = man_page(group).replace("\\-", "-")
    assert [one.replace(" ", "_") for one in re.findall(r"^\.SH (.*)$", text, re.MULTILINE)] == SECTIONS.split()
    context = click.Context(group)
    for name in group.list_commands(context):
        part = text.split(f".SS npucmp {name}\n")[1].split("\n.S")[0]
        for option in group.get_command(context, name).params:
            for flag in (*option.opts, *option.secondary_opts) if isinstance(option, click.Option) else ():
                assert re.search(rf"^\.B .*(?<!\S){re.escape(flag)}(?![\w-])", part, re.MULTILINE), f"{name} {flag}"


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_roff_reads_it_without_a_warning(tmp_path):
    page = tmp_path / "npucmp.1"
    page.write_text(man_page(group), encoding="ascii")
    got = subprocess.run(["groff", "-man", "-Tutf8", "-ww", page], capture_output=True, encoding="utf-8", timeout=60)
    assert (got.returncode, got.stderr) == (0, "")
    shown = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", got.stdout)
    assert "npucmp compare npu_dump gpu_dump -o report" in shown and "--include '*layer_norm*'" in shown
