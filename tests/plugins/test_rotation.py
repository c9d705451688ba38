"""Choice of the slow tests that a run of the whole suite executes."""

from typing import Final

from tests.checks.files import ROOT
from tests.plugins.rotation import LIST, not_chosen, slow_functions
from tests.torture import PROMISES

_FAST: Final = [f"tests/a/test_fast.py::test_{number}" for number in range(20)]
_SLOW: Final = [f"tests/a/test_slow.py::test_slow[{number}]" for number in range(20)]
_OTHER: Final = ["tests/b/test_slow.py::test_single"]
_TESTS: Final = [*_FAST, *_SLOW, *_OTHER]
_FUNCTIONS: Final = {"tests/a/test_slow.py::test_slow", "tests/b/test_slow.py::test_single"}


def chosen(seed: int, sampled: set[str] | None = None, tests: list[str] = _TESTS) -> set[str]:
    return {*tests} - not_chosen(tests, _FUNCTIONS, sampled or set(), 5, seed)


def test_run_executes_every_fast_test_and_one_in_five_slow_tests_of_each_folder() -> None:
    found = chosen(seed=1)
    assert found >= {*_FAST}
    assert len(found & {*_SLOW}) == 4
    assert found >= {*_OTHER}


def test_same_seed_chooses_the_same_slow_tests_and_other_seeds_choose_the_others() -> None:
    assert chosen(seed=1) == chosen(seed=1)
    assert set().union(*(chosen(seed=each) for each in range(60))) == {*_TESTS}


def test_cases_that_a_fault_matrix_has_chosen_are_not_chosen_again() -> None:
    assert chosen(seed=1, sampled={*_SLOW}) == {*_TESTS}


def test_tests_on_the_packaged_server_are_chosen_like_slow_tests_even_if_they_are_fast() -> None:
    packaged = [f"tests/a/test_fast.py::test_{number}[packaged-postgres]" for number in range(20)]
    found = chosen(seed=1, tests=[*_FAST, *packaged])
    assert found >= {*_FAST}
    assert len(found & {*packaged}) == 4


def test_at_least_one_test_of_each_promise_runs() -> None:
    folder = "tests/faults/claims"
    assert folder in PROMISES["P10"]
    tests = [f"{folder}/test_slow.py::test_slow[{number}]" for number in range(3)]
    others = [f"{folder}/test_slow.py::test_other[{number}]" for number in range(30)]
    for seed in range(20):
        left_out = not_chosen([*tests, *others], {f"{folder}/test_slow.py::test_slow"}, set(), 1000, seed)
        assert len(left_out) == 2
    alone = not_chosen(tests, {f"{folder}/test_slow.py::test_slow"}, set(), 1000, seed=3)
    assert len(alone) == 2


def test_every_listed_slow_test_function_exists() -> None:
    for listed in (ROOT / LIST).read_text().split():
        path, _, function = listed.partition("::")
        assert (ROOT / path).exists(), listed
        assert f"def {function}(" in (ROOT / path).read_text(), listed


def test_test_function_counts_as_slow_if_its_cases_together_take_three_seconds() -> None:
    durations = {"a.py::test_x[1]": 2.0, "a.py::test_x[2]": 1.0, "a.py::test_y": 2.9, "a.py::test_z": 3.0}
    assert slow_functions(durations) == ["a.py::test_x", "a.py::test_z"]
