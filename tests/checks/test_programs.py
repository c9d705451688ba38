"""Documents and code use the installed names of the control plane's programs."""

import re

from control_plane.programs import PURPOSES, SERVER, Program
from control_plane.server import HELP
from control_plane.settings import Settings
from tests.checks.files import ROOT, place, repository_files, text_lines

COMMAND = re.compile(rf"{SERVER} ([a-z][a-z-]*)")
# The words are joined from parts, so that this file does not match its own pattern.
MODULE = re.compile(r"python3? -m " + r"(control_plane|node_agent)\b(?!\.)")


def test_help_of_sliceplane_server_lists_every_program_with_its_purpose() -> None:
    listed = dict(line.strip().split(maxsplit=1) for line in HELP.splitlines() if line.startswith("  "))
    assert {name: listed.get(name) for name in Program} == PURPOSES


def test_parts_table_of_the_architecture_page_lists_every_program() -> None:
    rows = re.findall(rf"^\| `{SERVER} ([a-z-]+)`", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    assert rows == [*Program]


def test_operators_pages_name_every_setting_of_the_control_plane() -> None:
    pages = "".join((ROOT / f"docs/{name}.md").read_text() for name in ("server", "node", "access"))
    settings = {f"SLICEPLANE_{name.upper()}" for name in Settings.model_fields.keys() - {"failpoints"}}
    assert settings - {*re.findall(r"\bSLICEPLANE_[A-Z_]+\b", pages)} == set()


def test_documents_name_only_commands_that_the_server_has() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    unknown = [
        f"{place(page, number)}: {command}"
        for page in pages
        for number, line in enumerate(text_lines(page), start=1)
        for command in COMMAND.findall(line)
        if f"\n  {command} " not in HELP
    ]
    assert unknown == []


def test_no_file_starts_a_program_as_a_module_instead_of_its_installed_name() -> None:
    found = [
        place(path, number)
        for path in repository_files()
        for number, line in enumerate(text_lines(path), start=1)
        if MODULE.search(line)
    ]
    assert found == []
