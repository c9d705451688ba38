"""Errors of the client: one class for each problem type of the API, with reasons and request id."""

import pytest

from control_plane.api.requests.problem_types import ALL, ProblemType
from control_plane.client import errors
from control_plane.client.answers import Objection, Problem


@pytest.mark.parametrize("kind", ALL.values(), ids=lambda kind: kind.name)
@pytest.mark.parametrize("prefix", ["urn:sliceplane:problem:", "/problems/", "https://example.org/problems/"])
def test_client_raises_a_separate_error_class_for_each_problem_type_whatever_the_prefix_of_its_uri(
    kind: ProblemType, prefix: str
) -> None:
    found = errors.from_problem(Problem("title", kind.status, f"{prefix}{kind.name}"))
    assert type(found) is errors.BY_TYPE[kind.name]


def test_client_error_classes_of_all_problem_types_are_different() -> None:
    assert len({*errors.BY_TYPE.values()}) == len(errors.BY_TYPE)


@pytest.mark.parametrize(
    ("status", "kind"), [(409, errors.Conflict), (401, errors.Unauthorised), (418, errors.ApiProblem)]
)
def test_client_raises_the_error_class_of_the_http_status_for_an_unknown_problem_type(
    status: int, kind: type[errors.ApiProblem]
) -> None:
    assert type(errors.from_problem(Problem("title", status, "/problems/of-a-newer-release"))) is kind


def test_client_error_of_a_problem_has_the_codes_of_its_reasons_and_the_request_id() -> None:
    reasons = (
        Objection("no_capacity", "there is none"),
        Objection("unknown_sku", "no SKU is named x", "/sku"),
    )
    found = errors.from_problem(Problem("Refused", 409, reasons=reasons, detail="d", request_id="req-1"))
    assert (found.codes, found.request_id, found.status) == (
        frozenset({"no_capacity", "unknown_sku"}),
        "req-1",
        409,
    )
    assert str(found) == "Refused; there is none [no_capacity]; /sku: no SKU is named x [unknown_sku]"


def test_client_errors_of_outages_count_as_temporary_and_those_of_refusals_do_not() -> None:
    temporary = [errors.Unreachable("x"), errors.UnexpectedResponse("x")]
    temporary += [errors.from_problem(Problem("t", status)) for status in (500, 503)]
    permanent = [errors.Untrusted("x", "y"), errors.TimedOut("x"), errors.InvalidName("x")]
    permanent += [errors.from_problem(Problem("t", status)) for status in (401, 404, 409, 410, 422, 429)]
    assert [*map(errors.is_temporary, temporary)] == [True] * len(temporary)
    assert [*map(errors.is_temporary, permanent)] == [False] * len(permanent)
