"""Tests that the random order keeps the tests of a file together, and that the same seed repeats the order."""

import re
from itertools import groupby

import pytest

from tests.checks.files import ROOT

pytest_plugins = ["pytester"]

PLUGINS = ("-p", "tests.plugins.random_order", "-p", "no:cacheprovider", "-p", "no:asyncio")
SOURCE = "import pytest\n\n@pytest.mark.parametrize('n', range(8))\ndef test_it(n):\n    pass\n"


@pytest.fixture
def files(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(**{f"test_{name}": SOURCE for name in "abcd"})
    return pytester


def order(files: pytest.Pytester, *options: str) -> list[str]:
    done = files.runpytest_inprocess(*PLUGINS, "-v", *options)
    done.assert_outcomes(passed=32)
    return re.findall(r"^(test_\w\.py::test_it\[\d\])", done.stdout.str(), re.MULTILINE)


def test_same_seed_repeats_the_random_order_of_files_and_of_tests_in_a_file(files: pytest.Pytester) -> None:
    first = order(files, "--random-order=1")
    assert first == order(files, "--random-order=1")
    assert first != order(files, "--random-order=2")
    assert first != sorted(first)


def test_tests_of_a_file_stay_together_in_random_order(files: pytest.Pytester) -> None:
    of = [name for name, _ in groupby(order(files, "--random-order=1"), lambda test: test.partition("::")[0])]
    assert len(of) == 4
    assert of != sorted(of)


def test_random_order_run_without_a_seed_prints_a_seed_that_repeats_its_order(files: pytest.Pytester) -> None:
    done = files.runpytest_inprocess(*PLUGINS, "-q", "--random-order")
    done.stdout.re_match_lines([r"random order: --random-order=\d+ repeats it"])


def test_all_pytest_workers_collect_the_tests_in_the_same_random_order(files: pytest.Pytester) -> None:
    options = ("--random-order", "-n", "2", "--dist", "loadfile")
    files.runpytest_subprocess(*PLUGINS, *options).assert_outcomes(passed=32)


def test_shared_fixture_with_parameters_starts_once_per_parameter_in_random_order(
    files: pytest.Pytester,
) -> None:
    files.makepyfile(
        test_shared="""
        import pytest

        @pytest.fixture(scope="module", params="xy")
        def server(request):
            print("start of", request.param)

        @pytest.mark.parametrize("n", range(8))
        def test_it(server, n):
            pass
        """
    )
    done = files.runpytest_inprocess(*PLUGINS, "-s", "--random-order=1", "test_shared.py")
    assert sorted(re.findall("start of .", done.stdout.str())) == ["start of x", "start of y"]
