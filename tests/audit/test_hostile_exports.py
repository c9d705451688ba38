"""Exports, heads and keys that are wrong, cut, reordered or forged: a clear verdict, never a crash, never a pass."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control_plane.audit import verify
from control_plane.audit.heads import BadHead, SignedHead, sign_head, trusted_keys, verify_head
from control_plane.audit.verify import Kind, Verdict, verify_export
from deploy.embedded.postgres import PostgresServer
from tasks.signing import Signer, new_private_key
from tests.audit.sealed import SIGNER, compressed, decompressed
from tests.audit.test_manipulations import KEYS, Sealed, _make
from tests.servers.postgres import cloned

OTHER = Signer.of_pem(new_private_key())
Lines = list[bytes]


@pytest.fixture(scope="module")
def good(
    postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Sealed, Lines]]:
    """A sealed ledger, and the lines of its export."""
    with cloned(postgres_server) as database:
        sealed = Sealed(database, asyncio.run(_make(database)), tmp_path_factory.mktemp("hostile"))
        yield sealed, decompressed(asyncio.run(sealed._export(())))


def verdict_of(sealed: Sealed, content: bytes, kept: Sequence[str] = ()) -> Verdict:
    path = sealed.folder / "export"
    path.write_bytes(content)
    return verify_export(path, KEYS, [*kept, sealed.heads[1].text], unsealed_seconds=0)


def kinds(verdict: Verdict) -> set[Kind]:
    return {each.kind for each in verdict.differences}


def test_good_export_passes(good: tuple[Sealed, Lines]) -> None:
    sealed, lines = good
    assert verdict_of(sealed, compressed(lines)).differences == []


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", compressed([]), compressed([b"hello\n"]), compressed([b"[]\n"] * 9)],
    # A compressed text contains the time, so that test processes would give the cases different names.
    ids=["empty", "text", "empty archive", "archive of a text", "archive of lists"],
)
def test_file_that_is_not_an_export_never_passes(good: tuple[Sealed, Lines], content: bytes) -> None:
    assert Kind.EXPORT in kinds(verdict_of(good[0], content))


def test_export_truncated_at_any_line_fails_the_verification(good: tuple[Sealed, Lines]) -> None:
    sealed, lines = good
    for end in range(len(lines)):
        assert Kind.EXPORT in kinds(verdict_of(sealed, compressed(lines[:end]))), end


def test_compressed_file_that_was_truncated_never_passes(good: tuple[Sealed, Lines]) -> None:
    sealed, lines = good
    content = compressed(lines)
    for end in range(0, len(content), 97):
        # What is missing behind the damage is not reported as removed.
        assert kinds(verdict_of(sealed, content[:end])) == {Kind.EXPORT}, end


def test_compressed_file_with_a_damaged_checksum_never_passes(good: tuple[Sealed, Lines]) -> None:
    sealed, lines = good
    content = compressed(lines)
    wrong = content[:-4] + bytes([content[-4] ^ 1]) + content[-3:]
    assert Kind.EXPORT in kinds(verdict_of(sealed, wrong))


def test_export_of_several_zstandard_frames_passes_and_fails_if_other_bytes_follow_the_frames(
    good: tuple[Sealed, Lines],
) -> None:
    sealed, lines = good
    frames = [compressed(lines[:5]), compressed(lines[5:])]
    assert verdict_of(sealed, b"".join(frames)).differences == []
    assert kinds(verdict_of(sealed, b"".join([*frames, b"more"]))) == {Kind.EXPORT}
    assert kinds(verdict_of(sealed, b"".join([*frames, b"\0" * 512]))) == {Kind.EXPORT}


def test_compressed_export_that_needs_more_memory_for_decompression_than_allowed_is_refused(
    good: tuple[Sealed, Lines],
) -> None:
    """A file of a few bytes could make an auditor's program allocate gigabytes otherwise."""
    parameters = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    content = stream.compress(b"".join(good[1])) + stream.flush()
    assert kinds(verdict_of(good[0], content)) == {Kind.EXPORT}


def test_export_with_a_line_longer_than_the_limit_is_refused(
    good: tuple[Sealed, Lines], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_LINE_BYTES", 1 << 26)
    assert kinds(verdict_of(good[0], compressed([b"[" * (1 << 27)]))) == {Kind.EXPORT}


def test_unsealed_event_that_is_exported_as_sealed_is_found(good: tuple[Sealed, Lines]) -> None:
    sealed, lines = good
    claimed = [
        b'["sealed",' + line.split(b",")[1] + b"]\n" if line.startswith(b'["event"') else line
        for line in lines
    ]
    assert claimed != lines
    assert kinds(verdict_of(sealed, compressed(claimed))) == {Kind.EXPORT}


def test_export_without_one_of_its_lines_never_passes(good: tuple[Sealed, Lines]) -> None:
    sealed, lines = good
    for place in range(len(lines)):
        assert kinds(verdict_of(sealed, compressed(lines[:place] + lines[place + 1 :]))), lines[place]


def test_export_with_two_rows_or_heads_in_another_order_never_passes(good: tuple[Sealed, Lines]) -> None:
    sealed, lines = good
    tagged = [
        (number, line)
        for number, line in enumerate(lines)
        if line.startswith((b'["sealed', b'["event', b'["dead', b'["head'))
    ]
    for (first, one), (second, other) in pairwise(tagged):
        swapped = [*lines]
        swapped[first], swapped[second] = other, one
        assert kinds(verdict_of(sealed, compressed(swapped))), (first, second)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_export_with_one_changed_byte_never_passes_and_never_crashes(
    good: tuple[Sealed, Lines], data: st.DataObject
) -> None:
    sealed, lines = good
    content = b"".join(lines)
    place = data.draw(st.integers(0, len(content) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda each: each != content[place]))
    changed = content[:place] + bytes([byte]) + content[place + 1 :]

    assert kinds(verdict_of(sealed, compressed([changed]))) or is_equivalent(content, changed)


def is_equivalent(content: bytes, changed: bytes) -> bool:
    """Return whether a changed export still has the same meaning: only white space, the time of the export, or the name
    of a checkpoint may differ.
    """
    values = [
        [msgspec.json.decode(line) for line in each.splitlines()]
        for each in (content, changed)
        if _is_json(each)
    ]
    if len(values) < 2 or len(values[0]) != len(values[1]):
        return False
    return all(
        one == other or one[0] in ("export", "checkpoint", "end") for one, other in zip(*values, strict=True)
    )


def _is_json(content: bytes) -> bool:
    try:
        for line in content.splitlines():
            msgspec.json.decode(line)
    except msgspec.DecodeError:
        return False
    return True


def with_heads(lines: Lines, change: Callable[[SignedHead], str]) -> bytes:
    """Return the export `lines` with the text of each head replaced by the result of `change`."""
    changed = []
    for line in lines:
        tag, *rest = msgspec.json.decode(line)
        if tag == "head":
            rest[0] = change(verify_head(rest[0], KEYS))
        changed.append(msgspec.json.encode([tag, *rest]) + b"\n")
    return compressed(changed)


def test_export_with_heads_that_another_key_signed_never_passes(good: tuple[Sealed, Lines]) -> None:
    sealed, lines = good
    verdict = verdict_of(sealed, with_heads(lines, lambda each: sign_head(OTHER, each.head).text))

    assert {Kind.HEAD_SIGNATURE, Kind.HEAD_MISSING} <= kinds(verdict)
    assert any("is not one of the trusted keys" in each.what for each in verdict.differences)


def test_fork_that_was_signed_with_the_true_key_contradicts_the_kept_head(good: tuple[Sealed, Lines]) -> None:
    sealed, lines = good

    def forked(each: SignedHead) -> str:
        state = {part: digest[::-1] if part == "keys" else digest for part, digest in each.head.state.items()}
        return sign_head(SIGNER, msgspec.structs.replace(each.head, state=state)).text

    assert {Kind.FORK, Kind.HEAD_CHAIN} <= kinds(verdict_of(sealed, with_heads(lines, forked)))


def test_fork_shown_to_two_auditors_is_seen_as_soon_as_they_compare_their_heads(
    good: tuple[Sealed, Lines],
) -> None:
    sealed, lines = good
    other = sign_head(SIGNER, msgspec.structs.replace(sealed.heads[1].head, root="00" * 32))

    verdict = verdict_of(sealed, compressed(lines), [other.text])

    assert Kind.FORK in kinds(verdict)
    assert any("two kept heads have the number 2" in each.what for each in verdict.differences)


def test_wrong_key_never_passes_and_a_retired_key_verifies_only_its_own_heads(
    good: tuple[Sealed, Lines],
) -> None:
    sealed, lines = good
    path = sealed.folder / "export"
    path.write_bytes(compressed(lines))
    kept = [sealed.heads[1].text]

    wrong = verify_export(path, trusted_keys([OTHER.public]), kept)
    both = verify_export(path, trusted_keys([OTHER.public, SIGNER.public]), kept, unsealed_seconds=3600)

    assert {Kind.HEAD_SIGNATURE, Kind.HEAD_MISSING} <= kinds(wrong)
    assert (wrong.head, both.differences) == (None, [])


@pytest.mark.parametrize("text", ["x", "a.b.c", "ä", "." * 20, "{}"])
def test_verification_with_a_kept_text_that_is_not_a_head_never_passes(
    good: tuple[Sealed, Lines], text: str
) -> None:
    sealed, lines = good
    verdict = verdict_of(sealed, compressed(lines), [text])

    assert kinds(verdict) == {Kind.HEAD_SIGNATURE}


def test_interrupted_line_of_a_file_of_heads_is_ignored(good: tuple[Sealed, Lines]) -> None:
    sealed, lines = good
    text = sealed.heads[0].text
    for end in (3, 40, len(text) - 1):
        assert verdict_of(sealed, compressed(lines), [text[:end], text, ""]).differences == []


def test_text_of_another_type_with_a_valid_signature_is_not_accepted_as_a_head() -> None:
    with pytest.raises(BadHead, match="head\\+jws"):
        verify_head(SIGNER.sign("order+jws", b"{}"), KEYS)
    with pytest.raises(BadHead, match="the signed text is not a head"):
        verify_head(SIGNER.sign("head+jws", b'{"number": 1}'), KEYS)
