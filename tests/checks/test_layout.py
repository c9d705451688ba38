"""Rules about the repository's layout that no other tool checks."""

import re
import tomllib
from pathlib import Path

from tests.checks.files import ROOT, place, python_files, repository_files, text_lines

UNSPECIFIC_NAMES = {
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
# The words are joined from parts, so that this file does not match its own pattern.
INDEX_HOST = re.compile(
    "|".join([r"pypi" + r"\.org", r"python" + r"hosted", r"--(extra-)?index" + "-url", "--find" + "-links"])
)
OWN_MACHINE = re.compile(r"(?<![\w.$}])/(?:work|Users|home)/[\w.]")
SILENCED = re.compile(
    r"#\s*(?:type:\s*ignore(?:\[[\w, -]+\])?|noqa(?::\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?)(?P<reason>.*)"
)


def test_every_folder_with_modules_is_a_package_except_alembic() -> None:
    folders = {path.parent for path in python_files()} - {ROOT}
    lacking = {folder for folder in folders if not (folder / "__init__.py").exists()}
    assert {folder for folder in lacking if not folder.is_relative_to(ROOT / "alembic")} == set()


def test_alembic_folder_has_no_init_file_that_would_hide_the_alembic_package() -> None:
    assert list((ROOT / "alembic").rglob("__init__.py")) == []


def test_no_module_or_folder_has_an_unspecific_name() -> None:
    named = {
        path
        for path in python_files()
        for part in path.relative_to(ROOT).with_suffix("").parts
        if part in UNSPECIFIC_NAMES
    }
    assert named == set()


def test_no_file_outside_the_clean_machine_tests_names_a_package_index() -> None:
    assert _findings(INDEX_HOST, leaving_out=Path("tests/clean_machine")) == []


def test_no_file_names_a_personal_folder_of_a_machine() -> None:
    assert _findings(OWN_MACHINE) == []


def test_every_locked_package_is_pinned_by_hash() -> None:
    for lock in (ROOT / "requirements").glob("*.lock"):
        packages = re.split(r"^(?=[a-z])", lock.read_text(), flags=re.MULTILINE)[1:]
        assert [
            package for package in packages if "==" not in package or "--hash=sha256:" not in package
        ] == []


def test_every_suppressed_lint_or_type_rule_states_a_reason() -> None:
    unexplained = [
        place(path, number)
        for path in python_files()
        for number, line in enumerate(text_lines(path), start=1)
        if (found := SILENCED.search(line)) and not re.search(r"\w{3}", found["reason"])
    ]
    assert unexplained == []


def test_modules_of_the_programs_in_pyproject_exist() -> None:
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
