"""Tests of the selection by `./dev test --affected`: import distances, ranks, the time budget and the revision to
compare with.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from tests.checks.files import ROOT
from tests.plugins.affected import rank, within
from tests.plugins.durations import Durations
from tests.plugins.import_distance import Dependents, UnknownBase, changed_files, dependents

TEXTS = {
    "product.slots": "",
    "product.api": "",
    "product.schema": 'SQL = "sql"',
    "tests.golden": 'FILE = "orders.json"',
    "tests.slots.test_release": "",
    "tests.api.test_slots": "",
    "tests.api.test_pages": "",
}
MADE = Dependents(
    Path("/"),
    TEXTS,
    {
        "product.slots": {"product.api", "tests.slots.test_release"},
        "product.api": {"tests.api.test_slots", "tests.api.test_pages"},
        "tests.golden": {"tests.api.test_pages"},
    },
)


def test_module_that_imports_a_changed_module_indirectly_through_one_module_has_distance_two() -> None:
    distances = MADE.distances(["product/slots.py"])
    assert distances["tests.slots.test_release"] == 1
    assert distances["tests.api.test_pages"] == 2


def test_changed_data_file_affects_the_module_that_names_the_file() -> None:
    assert MADE.distances(["tests/golden/orders.json"]) == {"tests.golden": 0, "tests.api.test_pages": 1}


def test_changed_data_file_that_no_module_names_affects_the_module_that_names_its_folder() -> None:
    assert MADE.distances(["product/sql/0001/tables.sql"]) == {"product.schema": 0}


def test_changed_file_that_no_module_names_affects_no_module() -> None:
    assert MADE.distances(["docs/page.md"]) == {}


def test_test_files_are_ranked_by_distance_and_then_by_words_shared_with_the_changed_path() -> None:
    changed = ["product/slots.py"]
    assert list(rank(changed, MADE.distances(changed))) == [
        "tests/slots/test_release.py",
        "tests/api/test_slots.py",
        "tests/api/test_pages.py",
    ]


@dataclass(frozen=True)
class Definition:
    argname: str
    scope: str = "session"
    baseid: str = ""


@dataclass(frozen=True)
class Fixtures:
    name2fixturedefs: dict[str, Any]


class Item:
    """Substitute for a pytest item, with the attributes that the time budget reads."""

    def __init__(self, nodeid: str, *fixtures: Definition) -> None:
        self.nodeid = nodeid
        self._fixtureinfo = Fixtures({each.argname: [each] for each in fixtures})

    def get_closest_marker(self, _name: str) -> None:
        """Return None, because the substitute test has no markers."""


def chosen(budget: float, items: list[Item], durations: Durations) -> list[str]:
    return [item.nodeid for item in within(budget, cast("list[pytest.Item]", items), durations)]


def test_test_that_exceeds_the_rest_of_the_time_budget_is_left_out_and_a_later_fitting_test_is_taken() -> (
    None
):
    durations = Durations(tests={"a": 3, "b": 9, "c": 2})
    assert chosen(6, [Item("a"), Item("b"), Item("c")], durations) == ["a", "c"]


def test_shared_fixture_counts_once_in_the_time_budget_of_affected_tests() -> None:
    durations = Durations(tests={"a": 1, "b": 1}, fixtures={"session  server": 4})
    server = Definition("server")
    assert chosen(6, [Item("a", server), Item("b", server)], durations) == ["a", "b"]


def test_module_fixture_counts_once_per_file_in_the_time_budget_of_affected_tests() -> None:
    durations = Durations(tests={"x.py::a": 1, "y.py::b": 1}, fixtures={"module  server": 4})
    server = Definition("server", "module")
    assert chosen(6, [Item("x.py::a", server), Item("y.py::b", server)], durations) == ["x.py::a"]


def test_shortest_test_is_taken_if_every_test_exceeds_the_time_budget() -> None:
    durations = Durations(tests={"a": 30, "b": 20})
    assert chosen(10, [Item("a"), Item("b")], durations) == ["b"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Git repository with one commit on main and the file `kept`."""
    (tmp_path / "kept").write_text("1")
    for command in (
        ("init", "--quiet", "--initial-branch=main"),
        ("add", "."),
        ("commit", "--quiet", "-m", "1"),
    ):
        git(tmp_path, *command)
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True)


def test_changed_files_on_a_clean_main_branch_are_those_of_the_last_commit(repository: Path) -> None:
    (repository / "new").write_text("2")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "2")
    assert changed_files(repository, "")[1] == ["new"]


def test_changed_files_on_a_branch_are_those_since_main_with_uncommitted_and_untracked_files(
    repository: Path,
) -> None:
    git(repository, "switch", "--quiet", "-c", "branch")
    (repository / "committed").write_text("2")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "2")
    (repository / "kept").write_text("3")
    (repository / "untracked").write_text("4")
    assert changed_files(repository, "")[1] == ["committed", "kept", "untracked"]


def test_unknown_git_revision_is_refused_with_its_name(repository: Path) -> None:
    with pytest.raises(UnknownBase, match="nowhere"):
        changed_files(repository, "nowhere")


@pytest.fixture(scope="module")
def product() -> Dependents:
    return dependents(ROOT)


@pytest.mark.parametrize(
    ("changed", "test", "distance"),
    [
        ("control_plane/client/timeline.py", "tests.client.test_timeline", 1),
        ("tests/servers/postgres.py", "tests.ledger.test_append", 1),
        ("tests/queue/conftest.py", "tests.queue.test_delivery", 1),
        ("tests/golden/orders.json", "tests.golden.test_wire", 0),
    ],
)
def test_distance_of_a_test_file_to_a_change_follows_from_its_imports_fixtures_and_data_files(
    product: Dependents, changed: str, test: str, distance: int
) -> None:
    assert product.distances([changed])[test] == distance


def test_run_of_affected_tests_prints_the_number_of_selected_and_left_out_tests() -> None:
    options = ("--affected", "HEAD", "--collect-only", "-q", "-p", "no:cacheprovider")
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "files differ from" in completed.stdout
