"""Secrets in a text are recognized and omitted, in a time that is proportional to the length of the text."""

import time

import pytest

from control_plane.decisions.misplaced_secrets import has_secret, without_secrets

JWT = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4In0xxxx.c2lnbmF0dXJl"
KEY = f"sp_{'a-_0' * 10}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (JWT, "[secret]"),
        (f"use {JWT}.", "use [secret]."),
        (f"/v1/keys/{JWT}/x", "/v1/keys/[secret]/x"),
        (f"token_{JWT}", "[secret]"),
        (f"a.{JWT}", "a.[secret]"),
        (f"eyJ{JWT}", "[secret]"),
        (f"{KEY} and {JWT}", "[secret] and [secret]"),
        (f"x{KEY}", "x[secret]"),
        ("-----BEGIN EC PRIVATE KEY-----\nb3Bl", "[secret]"),
    ],
)
def test_text_with_a_secret_is_recognized_and_shown_without_the_secret(text: str, shown: str) -> None:
    assert has_secret(text)
    assert without_secrets(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "eyJ.a.b",
        "eyJaaaaaaa.aaaaaaaa.aaaaaaaa",  # the first part is too short
        "eyJaaaaaaaa.aaaaaaa.aaaaaaaa",
        "eyJaaaaaaaa.aaaaaaaa.aaaaaaa",
        "aaaaaaaaaaa.eyJaaaaaaaa.aaaaaaaa",  # the part with "eyJ" is not the first of three
        "sp_short",
        "-----BEGIN CERTIFICATE-----",
    ],
)
def test_text_without_a_secret_is_recognized_as_such_and_shown_unchanged(text: str) -> None:
    assert not has_secret(text)
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    "text",
    ["eyJ" * 20_000, "eyJaaaaaaaa.aaaaaaaa.!" * 3_000, "sp_" + "sp_!" * 15_000, "-----BEGIN " * 5_000],
    ids=["one-part", "many-parts", "keys", "private-keys"],
)
def test_long_text_that_resembles_secrets_is_searched_in_little_time(text: str) -> None:
    began = time.thread_time()

    has_secret(text)

    assert time.thread_time() - began < 0.1
