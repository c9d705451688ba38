"""Tests of the decisions about tokens that need no signature: grants, actors, revocation, and the settings."""

import json
import string
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from control_plane.api.filters.events import _ACTOR
from control_plane.decisions.access import Role
from control_plane.decisions.issuers import PERMITTED, Issuer
from control_plane.decisions.refusals import Forbidden
from control_plane.decisions.tokens import (
    MAX_BYTES,
    USER_ACTOR,
    TokenHolder,
    TokenRefused,
    holder_of,
    is_recorded_form,
    read_token,
    refuse_revoked,
)
from control_plane.settings import Settings, SettingsRefused, read_settings

NOW = 1_800_000_000.0
FIELDS: dict[str, Any] = {
    "issuer": "https://id.example/realms/corp",
    "name": "corp",
    "audience": "slices",
    "grants": [
        {"claim": "groups", "value": "vision", "role": "caller", "projects": ["vision"]},
        {"claim": "groups", "value": "rendering", "role": "caller", "projects": ["rendering", "vision"]},
        {"claim": ["realm_access", "roles"], "value": "reviewer", "role": "auditor", "projects": ["vision"]},
        {"claim": ["realm_access", "roles"], "value": "auditor", "role": "auditor"},
        {"claim": "https://slices.example/role", "value": "operator", "role": "admin"},
        {"claim": "scope", "value": "slices:audit", "role": "auditor"},
    ],
}
ISSUER = Issuer.model_validate(FIELDS)


def holder(**claims: Any) -> TokenHolder:
    common = {"iss": ISSUER.issuer, "aud": "slices", "sub": "alice", "iat": NOW - 60, "exp": NOW + 60}
    return holder_of({**common, **claims}, ISSUER, NOW)


@pytest.mark.parametrize(
    ("claims", "role", "projects"),
    [
        ({"groups": ["vision"]}, Role.CALLER, {"vision"}),
        ({"groups": "vision"}, Role.CALLER, {"vision"}),
        ({"groups": ["other", "rendering", "vision"]}, Role.CALLER, {"rendering", "vision"}),
        ({"groups": ["vision"], "realm_access": {"roles": ["reviewer"]}}, Role.AUDITOR, {"vision"}),
        ({"realm_access": {"roles": ["reviewer", "auditor"]}}, Role.AUDITOR, None),
        ({"groups": ["vision"], "https://slices.example/role": "operator"}, Role.ADMIN, None),
        ({"scope": "openid slices:audit"}, Role.AUDITOR, None),
    ],
)
def test_token_holder_has_the_highest_granted_role_with_the_projects_of_all_its_grants(
    claims: dict[str, Any], role: Role, projects: set[str] | None
) -> None:
    found = holder(**claims).principal
    assert (found.role, found.projects) == (role, None if projects is None else frozenset(projects))


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"groups": []},
        {"groups": ["VISION", "visio", "vision ", " vision", "vision,rendering"]},
        {"groups": "vision rendering"},
        {"groups": {"vision": True}},
        {"groups": [["vision"]]},
        {"realm_access": ["reviewer"]},
        {"realm_access": {"roles": {"reviewer": 1}}},
        {"realm_access.roles": ["reviewer"]},
        {"scope": "slices:audit2 slices"},
        {"https://slices.example/role": True},
    ],
)
def test_token_with_claims_that_only_resemble_a_grant_is_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(Forbidden) as refused:
        holder(**claims)
    assert [each.code for each in refused.value.objections] == ["no_grant"]


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=60), st.text(min_size=1, max_size=60))
def test_different_subjects_have_different_actors_and_each_actor_can_be_filtered_and_revoked(
    one: str, other: str
) -> None:
    actors = []
    for subject in (one, other):
        try:
            actor = holder(sub=subject, groups=["vision"]).principal.actor
        except TokenRefused:
            continue
        assert USER_ACTOR.fullmatch(actor)
        assert is_recorded_form(actor)
        assert _ACTOR.fullmatch(actor)
        assert actor.isascii()
        actors.append(actor)
    assert one == other or len({*actors}) == len(actors)


@pytest.mark.parametrize(
    "subject", ["%63arol", "carol%7E", "%2e", "%FF", "%C3", "%0A", "%E2%80%8B", "%ED%A0%80", "%20" * 86]
)
def test_actor_with_a_differently_encoded_subject_is_not_in_the_form_that_the_ledger_records(
    subject: str,
) -> None:
    assert not is_recorded_form(f"user:corp/{subject}")


@pytest.mark.parametrize("subject", ["carol", "carol%2F", "%2563arol", "%C3%84lice", "%20" * 85])
def test_actor_with_a_canonically_encoded_subject_is_in_the_form_that_the_ledger_records(
    subject: str,
) -> None:
    assert is_recorded_form(f"user:corp/{subject}")


def test_actor_of_the_maximum_length_is_accepted_in_event_filters_and_revocations() -> None:
    issuer = Issuer.model_validate({**FIELDS, "name": "a" * 31})
    claims = {"iss": ISSUER.issuer, "aud": "slices", "sub": "x" * 255, "iat": NOW, "exp": NOW + 1}
    actor = holder_of({**claims, "groups": "vision"}, issuer, NOW).principal.actor
    assert USER_ACTOR.fullmatch(actor)
    assert _ACTOR.fullmatch(actor)


@given(st.text(string.ascii_letters + string.digits + "-_.=", max_size=80))
def test_text_that_is_not_a_token_is_refused_as_malformed(text: str) -> None:
    with pytest.raises(TokenRefused) as refused:
        read_token(text)
    assert refused.value.code == "token_malformed"


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_token_claim_with_a_value_of_any_type_is_accepted_or_refused_without_an_internal_error(
    value: Any,
) -> None:
    for name in ("iss", "aud", "azp", "sub", "iat", "exp", "nbf", "cnf", "scope", "groups", "realm_access"):
        try:
            holder(**{"groups": ["vision"], name: value})
        except (TokenRefused, Forbidden):
            continue


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_token_of_any_other_use_is_refused_as_malformed(value: Any) -> None:
    for name in ("events", "token_use"):
        with pytest.raises(TokenRefused) as refused:
            holder(groups=["vision"], **{name: value})
        assert refused.value.code == "token_malformed"


def test_token_claims_of_another_issuer_are_refused() -> None:
    with pytest.raises(TokenRefused, match="claim iss"):
        holder(iss=f"{ISSUER.issuer}/", groups=["vision"])


def test_size_of_a_token_is_checked_before_its_content() -> None:
    with pytest.raises(TokenRefused, match="8 KiB"):
        read_token("." * (MAX_BYTES + 1))


@pytest.mark.parametrize(("issued", "refused"), [(-31.0, True), (0.0, True), (30.0, True), (30.5, False)])
def test_token_is_refused_if_it_may_have_been_issued_before_the_revocation(
    issued: float, refused: bool
) -> None:
    revoked_at = datetime.fromtimestamp(NOW - 60, UTC)
    given = holder(iat=NOW - 60 + issued, groups=["vision"])
    if refused:
        with pytest.raises(TokenRefused):
            refuse_revoked(given, revoked_at)
    else:
        refuse_revoked(given, revoked_at)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithms": ["none"]}, "'none' is not permitted"),
        ({"algorithms": ["RS256", "HS256"]}, "'HS256' is not permitted"),
        ({"algorithms": []}, "at least 1 item"),
        ({"issuer": "http://id.example"}, "must begin with https://"),
        ({"issuer": "http://127.0.0.1.evil.example"}, "must begin with https://"),
        ({"issuer": "https://user@id.example"}, "must not contain a user"),
        ({"issuer": "https://id.example/?a=b"}, "must not contain a user, a query or a fragment"),
        ({"issuer": "ftp://id.example"}, "must begin with https://"),
        ({"issuer": "https://"}, "is not a URL"),
        ({"issuer": "https://id.example:99999"}, "is not a URL"),
        ({"name": "Corp"}, "is not a valid name of an identity provider"),
        ({"grants": []}, "at least 1 item"),
        ({"grants": [{"claim": "g", "value": "v", "role": "caller"}]}, "must list at least one project"),
        ({"grants": [{"claim": "g", "value": "v", "role": "node"}]}, "'caller', 'admin' or 'auditor'"),
        ({"grants": [{"claim": "g", "value": "v", "role": "admin", "project": "p"}]}, "Extra inputs"),
        ({"clock_skew_seconds": 301}, "less than or equal to 300"),
        ({"audiences": ["slices"]}, "Extra inputs"),
    ],
)
def test_insecure_or_misspelled_setting_of_an_identity_provider_is_refused_with_the_reason(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        Issuer.model_validate({**FIELDS, **changes})


@pytest.mark.parametrize("issuer", ["http://127.0.0.1:8080", "http://[::1]:8080", "http://localhost"])
def test_identity_provider_without_tls_is_permitted_on_loopback(issuer: str) -> None:
    assert Issuer.model_validate({**FIELDS, "issuer": issuer}).issuer == issuer


def test_identity_providers_are_read_from_the_environment_and_a_provider_listed_twice_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLICEPLANE_DATABASE_URL", "postgresql://u:p@127.0.0.1/d")
    monkeypatch.setenv("SLICEPLANE_REDIS_URL", "redis://:p@127.0.0.1:6379")
    monkeypatch.setenv("SLICEPLANE_OIDC", json.dumps([FIELDS]))
    settings: Settings = read_settings()
    assert settings.oidc == (ISSUER,)
    for change in ({"name": "corp", "issuer": "https://b.example"}, {"name": "other"}):
        monkeypatch.setenv("SLICEPLANE_OIDC", json.dumps([FIELDS, {**FIELDS, **change}]))
        with pytest.raises(SettingsRefused, match=r"SLICEPLANE_OIDC: .*listed more than once"):
            read_settings()


def test_permitted_token_algorithms_exclude_hmac_and_none() -> None:
    assert not [each for each in PERMITTED if each.startswith(("HS", "none"))]
