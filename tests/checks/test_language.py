"""The language check finds refused words in code, comments, docstrings, SQL and documents, and permits other words."""

from pathlib import Path

import pytest

from deploy.checks import language

MAX_EXCEPTIONS = 30
REFUSED = "to" + "ld"
"""A refused word, written in two parts, so that the language check has no finding in this file."""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(language, "ROOT", tmp_path)
    return tmp_path


def words(folder: Path, name: str, text: str) -> list[tuple[int, str]]:
    (folder / name).write_text(text, encoding="utf-8")
    return [(each.line, each.word) for each in language.findings(folder / name)]


@pytest.mark.parametrize(
    "line",
    [
        f"{REFUSED} = 1",
        f"def is_{REFUSED}() -> None: ...",
        f"class Is{REFUSED.capitalize()}: ...",
        f"x = 'it was {REFUSED}'",
        f"x = f'it was {{1}} {REFUSED}'",
        f"x = 1  # {REFUSED}",
    ],
)
def test_language_check_finds_a_refused_word_in_every_part_of_python_code(
    repository: Path, line: str
) -> None:
    assert words(repository, "module.py", f"y = 0\n{line}\n") == [(2, REFUSED)]


@pytest.mark.parametrize("name", ["page.md", "table.sql"])
def test_language_check_finds_a_refused_word_in_text_with_its_line_number(
    repository: Path, name: str
) -> None:
    assert words(repository, name, f"first\n-- {REFUSED.upper()} second\n") == [(2, REFUSED)]


def test_language_check_permits_a_longer_word_that_contains_a_refused_word(repository: Path) -> None:
    assert words(repository, "module.py", f"x{REFUSED} = 's{REFUSED}ier'\n") == []


def test_language_check_finds_a_refused_phrase_across_the_end_of_a_line(repository: Path) -> None:
    phrase = "for " + "ever"
    assert words(repository, "page.md", f"It stays {phrase.replace(' ', chr(10))}.\n") == [(1, phrase)]


@pytest.mark.parametrize("opening", language.OPENINGS)
def test_language_check_finds_a_docstring_that_begins_with_a_preposition(
    repository: Path, opening: str
) -> None:
    found = words(repository, "module.py", f'def f() -> None:\n    """{opening} a slot."""\n')
    assert (2, opening) in found


def test_language_check_permits_a_docstring_that_begins_with_a_word_that_contains_a_preposition(
    repository: Path,
) -> None:
    assert words(repository, "module.py", 'def f() -> None:\n    """Offer a slot."""\n') == []


def test_exception_of_the_language_check_permits_its_word_in_its_file_only() -> None:
    here, elsewhere = (language.Finding(path, 1, REFUSED, "") for path in ("a.py", "b.py"))
    assert [*language.without_exceptions([here, elsewhere], [f"a.py {REFUSED}  # a reason"])] == [elsewhere]


def test_exceptions_of_the_language_check_are_few_and_have_reasons() -> None:
    lines = language.EXCEPTIONS.read_text(encoding="utf-8").splitlines()
    exceptions = [line for line in lines if line and not line.startswith("#")]
    assert len(exceptions) <= MAX_EXCEPTIONS
    assert [line for line in exceptions if "#" not in line] == []
