"""Tests that a test which leaves something behind fails, and the message names the leftovers. Resources of shared
fixtures are not reported.
"""

import sys

import pytest

from tests.checks.files import ROOT
from tests.servers.postgres import server_folder

pytest_plugins = ["pytester"]

START = f"""
import atexit, subprocess, tempfile, pytest

def start(name):
    process = subprocess.Popen(
        [{sys.executable!r}, "-c", "import time; time.sleep(60)", name], stdout=subprocess.DEVNULL
    )
    atexit.register(process.kill)
    return process
"""
RESOURCES_OF_TESTS = """
import psycopg

def test_process():
    global left
    left = start("mine")

def test_folder():
    left.kill()
    left.wait()
    tempfile.mkdtemp(prefix="sp-mine-")

def test_database(postgres_server):
    with psycopg.connect(postgres_server.admin_dsn_of("postgres"), autocommit=True) as admin:
        admin.execute("create database mine")

def test_nothing(postgres_server):
    pass
"""
SHARED = """
@pytest.fixture(scope="module")
def shared():
    folder, process = tempfile.mkdtemp(prefix="sp-shared-"), start("shared")
    yield folder
    {end}

def test_first(shared):
    global more
    more = start(shared + "/of-the-shared-system")

def test_second(shared):
    more.kill()
    more.wait()
"""
ENDS = "process.kill(); process.wait(); __import__('os').rmdir(folder)"


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, source: str) -> pytest.RunResult:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(START + source)
    plugins = ("-p", "tests.plugins.leftovers", "-p", "tests.servers.postgres", "-p", "no:cacheprovider")
    with server_folder() as folder:
        monkeypatch.setenv("TMPDIR", str(folder))
        return pytester.runpytest_subprocess(*plugins, "-o", "leftover_seconds=0.2")


def test_each_test_that_leaves_a_resource_behind_fails_with_the_name_of_the_resource(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(pytester, monkeypatch, RESOURCES_OF_TESTS)
    done.assert_outcomes(passed=4, errors=3)
    named = {
        "process": "*process *time.sleep(60) mine",
        "folder": "*folder */sp-mine-*",
        "database": "*database * of *postgres/data",
    }
    for test, resource in named.items():
        done.stdout.fnmatch_lines([f"*test_{test} left behind:", resource])


def test_resources_of_a_shared_fixture_are_not_reported_as_leftovers_while_it_is_used(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(pytester, monkeypatch, SHARED.format(end=ENDS)).assert_outcomes(passed=2)


def test_shared_fixture_that_leaves_its_process_running_fails_the_last_test_that_uses_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(pytester, monkeypatch, SHARED.format(end="globals().update(process=process)"))
    done.assert_outcomes(passed=2, errors=1)
    done.stdout.fnmatch_lines(["*test_second left behind:", "*folder */sp-shared-*", "*process * shared"])
