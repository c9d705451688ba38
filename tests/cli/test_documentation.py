"""Tests of docs/cli.md, the documentation page of the command line: it names every command and every option, and every
name on it exists.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from typer.main import get_command

from control_plane.cli.failures import ExitCode
from control_plane.cli.program import program
from control_plane.client import bodies, calls, errors
from tests.checks.files import ROOT

PAGE: Final = (ROOT / "docs/cli.md").read_text()
USAGE: Final = "\n".join(re.findall(r"```\n(sliceplane .*?)```", PAGE, re.DOTALL)[:2])
OF_ALL: Final = {"--output", "-o", "--timeout", "--help", "-h", "--wait"}
"""Options that docs/cli.md describes once for all commands."""
OPPOSITES: Final = {"--replace-on-failure", "--no-wait"}
"""Options of which docs/cli.md shows only the opposite name, because these are the defaults."""


def commands(found: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command in a group and its subgroups, each with its words, such as `("keys", "list")`."""
    if (below := getattr(found, "commands", None)) is None:
        yield words, found
        return
    for name, each in below.items():
        yield from commands(each, *words, name)


COMMANDS: Final = dict(commands(get_command(program)))


def usage_of(words: tuple[str, ...]) -> str:
    """Return the usage lines in docs/cli.md that begin with the first words of a command: with as many words as
    possible, or, if no line begins with its first word, the lines that list its last word as an alternative.
    """
    for count in range(len(words), 0, -1):
        start = " ".join(["sliceplane", *words[:count]])
        if lines := [line for line in USAGE.splitlines() if re.match(rf"{re.escape(start)}( |$)", line)]:
            return "\n".join(lines)
    return "\n".join(line for line in USAGE.splitlines() if re.search(rf"\| {words[-1]}\b", line))


def test_documentation_page_of_the_cli_lists_every_command() -> None:
    missing = [
        words for words in COMMANDS if not re.search(rf"(?<![\w-]){words[-1]}(?![\w-])", usage_of(words))
    ]
    assert missing == []
    assert len(COMMANDS) > 50


def test_documentation_page_of_the_cli_lists_every_option_of_each_command() -> None:
    missing = {
        (*words, option)
        for words, command in COMMANDS.items()
        for parameter in command.params
        if parameter.param_type_name == "option"
        for option in parameter.opts
        if option.startswith("--")
        and option not in OF_ALL | OPPOSITES
        and f"{option} " not in f"{usage_of(words)} ".replace("]", " ")
        and option not in FILTERS
    }
    assert missing == set()


FILTERS: Final = {"--stream", "--type", "--project", "--actor", "--correlation", "--id"}
"""Options that docs/cli.md calls FILTER."""


def test_documentation_page_of_the_cli_lists_every_global_option() -> None:
    options = {option for parameter in get_command(program).params for option in parameter.opts}
    assert {option for option in options - OF_ALL if option not in USAGE} == set()


def test_commands_in_examples_of_the_documentation_page_of_the_cli_exist() -> None:
    named = re.findall(r"(?<!\$ )`?sliceplane ((?:[a-z]+(?:-[a-z]+)* ?)+)", PAGE)
    known = {" ".join(words[:count]) for words in COMMANDS for count in range(1, len(words) + 1)}
    unknown = {text for text in named if not any(f"{text.strip()} ".startswith(f"{each} ") for each in known)}
    assert unknown == set()


def test_documentation_page_of_the_cli_describes_every_exit_code() -> None:
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == {*map(int, ExitCode)}


def test_every_name_on_the_documentation_page_of_the_python_client_exists() -> None:
    modules = {"bodies": bodies, "calls": calls, "errors": errors}
    named = re.findall(r"\b(bodies|calls|errors)\.(\w+)", PAGE)
    assert [(module, name) for module, name in named if not hasattr(modules[module], name)] == []
    assert len(named) > 5


def test_every_command_of_the_cli_has_a_help_text() -> None:
    assert [words for words, command in COMMANDS.items() if not command.help] == []
