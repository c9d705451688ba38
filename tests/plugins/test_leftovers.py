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
PROCESS_OF_A_TEST = """
def test_first():
    global left
    left = start("mine")

def test_second():
    left.kill()
    left.wait()
"""
FOLDER_OF_A_TEST = """
def test_first():
    tempfile.mkdtemp(prefix="sp-mine-")
"""
DATABASE_OF_A_TEST = """
import psycopg

def test_first(postgres_server):
    with psycopg.connect(postgres_server.admin_dsn_of("postgres"), autocommit=True) as admin:
        admin.execute("create database mine")

def test_second():
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


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (PROCESS_OF_A_TEST, "*process *time.sleep(60) mine"),
        (FOLDER_OF_A_TEST, "*folder */sp-mine-*"),
        (DATABASE_OF_A_TEST, "*database * of *postgres/data"),
    ],
)
def test_test_that_leaves_a_resource_behind_fails_with_the_name_of_the_resource(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, source: str, named: str
) -> None:
    done = run(pytester, monkeypatch, source)
    assert done.parseoutcomes()["errors"] == 1
    done.stdout.fnmatch_lines(["*test_first left behind:", named])


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
