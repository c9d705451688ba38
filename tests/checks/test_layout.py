"""Rules of the repository's shape that no other tool checks."""

import re
import tomllib
from pathlib import Path

from tests.checks.files import ROOT, place, python_files, repository_files, text_lines

SHAPELESS = {
    "utils",
    "util",
    "common",
    "base",
    "manager",
    "managers",
    "service",
    "services",
    "helpers",
    "misc",
}
# Assembled, so that this file does not name what it looks for.
INDEX_HOST = re.compile(
    "|".join([r"pypi" + r"\.org", r"python" + r"hosted", r"--(extra-)?index" + "-url", "--find" + "-links"])
)
OWN_MACHINE = re.compile(r"(?<![\w.$}])/(?:work|Users|home)/[\w.]")
SILENCED = re.compile(
    r"#\s*(?:type:\s*ignore(?:\[[\w, -]+\])?|noqa(?::\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?)(?P<reason>.*)"
)


def test_every_folder_of_modules_is_a_package_but_alembic() -> None:
    folders = {path.parent for path in python_files()} - {ROOT}
    lacking = {folder for folder in folders if not (folder / "__init__.py").exists()}
    assert {folder for folder in lacking if not folder.is_relative_to(ROOT / "alembic")} == set()


def test_the_alembic_folder_never_hides_the_alembic_package() -> None:
    assert list((ROOT / "alembic").rglob("__init__.py")) == []


def test_no_module_is_named_for_nothing_in_particular() -> None:
    named = {
        path
        for path in python_files()
        for part in path.relative_to(ROOT).with_suffix("").parts
        if part in SHAPELESS
    }
    assert named == set()


def test_no_file_names_a_package_index() -> None:
    assert _findings(INDEX_HOST, leaving_out=Path("tests/clean_machine")) == []


def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    assert _findings(OWN_MACHINE) == []


def test_every_locked_package_is_pinned_by_hash() -> None:
    for lock in (ROOT / "requirements").glob("*.lock"):
        packages = re.split(r"^(?=[a-z])", lock.read_text(), flags=re.MULTILINE)[1:]
        assert [
            package for package in packages if "==" not in package or "--hash=sha256:" not in package
        ] == []


def test_a_silenced_rule_says_why() -> None:
    unexplained = [
        place(path, number)
        for path in python_files()
        for number, line in enumerate(text_lines(path), start=1)
        if (found := SILENCED.search(line)) and not re.search(r"\w{3}", found["reason"])
    ]
    assert unexplained == []


def test_the_programs_that_pyproject_names_exist() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    modules = [entry.partition(":")[0].replace(".", "/") for entry in scripts.values()]
    assert [module for module in modules if not (ROOT / f"{module}.py").exists()] == []


def _findings(pattern: re.Pattern[str], *, leaving_out: Path | None = None) -> list[str]:
    return [
        f"{place(path, number)}: {line.strip()}"
        for path in repository_files()
        if leaving_out is None or not path.is_relative_to(ROOT / leaving_out)
        for number, line in enumerate(text_lines(path), start=1)
        if pattern.search(line)
    ]
