"""Tests that `--postgres both` selects the tests that run on Debian's PostgreSQL and on the packaged one."""

import pytest

from tests.checks.files import ROOT
from tests.plugins.distribution import ON_PACKAGED_POSTGRES, group_of
from tests.servers.postgres import BOTH, ON_BOTH

pytest_plugins = ["pytester"]

SOURCE = "def test_it(postgres_server):\n    pass\n\ndef test_without_server():\n    pass\n"


def test_only_tests_of_the_ledger_and_of_the_rebuild_with_a_server_are_collected_for_both_servers(
    pytester: pytest.Pytester,
) -> None:
    for folder, name in (
        ("tests/ledger", "append"),
        ("tests/projections", "rebuild"),
        ("tests/api", "lists"),
    ):
        made = pytester.path / folder
        made.mkdir(parents=True)
        (made / f"test_{name}.py").write_text(SOURCE)
    plugins = ("-p", "tests.servers.postgres", "-p", "no:cacheprovider", "-p", "no:asyncio")
    done = pytester.runpytest_inprocess(*plugins, "--collect-only", "-q", "--postgres", BOTH)
    assert sorted(line for line in done.outlines if "::" in line) == [
        "tests/api/test_lists.py::test_it",
        "tests/api/test_lists.py::test_without_server",
        "tests/ledger/test_append.py::test_it[debian]",
        "tests/ledger/test_append.py::test_it[packaged-postgres]",
        "tests/ledger/test_append.py::test_without_server",
        "tests/projections/test_rebuild.py::test_it[debian]",
        "tests/projections/test_rebuild.py::test_it[packaged-postgres]",
        "tests/projections/test_rebuild.py::test_without_server",
    ]


def test_tests_on_the_packaged_server_run_in_one_worker_whichever_file_they_are_in() -> None:
    tests = (
        "tests/ledger/test_append.py::test_it[1-packaged-postgres]",
        "tests/projections/test_rebuild.py::x[packaged-postgres]",
    )
    assert {group_of(each, ROOT) for each in tests} == {ON_PACKAGED_POSTGRES}
    assert group_of("tests/ledger/test_append.py::test_it[1-debian]", ROOT) == "tests/ledger/test_append.py"


def test_paths_of_the_tests_that_run_on_both_servers_exist() -> None:
    assert all((ROOT / path).exists() for path in ON_BOTH)
