"""Heads, proofs, export and offline verification of a running control plane, over the API and the command line."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from typer.testing import CliRunner

from control_plane.audit.checks import NotProved, check_inclusion, check_succession
from control_plane.audit.heads import head_of, sign_head, trusted_keys
from control_plane.cli.program import program
from deploy.embedded.children import installed_program
from deploy.embedded.postgres import PostgresServer
from tasks.signing import Signer, new_private_key
from tests.api.access.principals import issue
from tests.api.node import register_node
from tests.audit.sealed import compressed, decompressed
from tests.cli.control_plane import document, page, problem, running_plane
from tests.cli.outcome import Outcome
from tests.servers.plane import ADMIN_KEY, RunningPlane, running
from tests.waiting import until

Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def plane(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    with running(postgres_server) as plane:
        register_node(plane, "n1")
        await_sealed(plane)
        yield plane


@pytest.fixture
def client(plane: RunningPlane) -> Iterator[httpx.Client]:
    with plane.client() as client:
        yield client


@pytest.fixture
def key_file(plane: RunningPlane) -> Path:
    assert plane.sealing.sealing_key_file is not None
    return plane.sealing.sealing_key_file.with_suffix(".pub.pem")


@pytest.fixture
def sliceplane(plane: RunningPlane, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("SLICEPLANE_URL", plane.url)
    monkeypatch.setenv("SLICEPLANE_API_KEY", ADMIN_KEY)
    monkeypatch.setenv("SLICEPLANE_CONFIG", str(tmp_path / "client.json"))

    def run(*words: object) -> Outcome:
        result = CliRunner().invoke(program, [*map(str, words)], prog_name="sliceplane")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run


def newest(plane: RunningPlane) -> dict[str, Any]:
    with plane.client() as client:
        [head] = client.get("/audit/heads", params={"limit": 1}).json()["items"] or [{"size": 0}]
        return dict(head)


def await_sealed(plane: RunningPlane) -> dict[str, Any]:
    """Wait until every event is sealed, and return the newest head."""
    last = plane.last_position()
    until(lambda: newest(plane)["size"] >= last, "all events are sealed")
    return newest(plane)


def test_every_event_of_a_running_control_plane_has_a_proof_that_verifies(
    plane: RunningPlane, client: httpx.Client, key_file: Path
) -> None:
    head = await_sealed(plane)
    keys = trusted_keys([key_file.read_text()])
    for position, leaf in plane.rows("select position, encode(leaf, 'hex') from ledger.event"):
        found = client.get(f"/audit/proofs/{position}", params={"size": head["size"]}).json()

        assert (found["position"], found["leaf"]) == (position, leaf)
        check_inclusion(found["head"]["signed"], keys, position, leaf, found["hashes"])
        with pytest.raises(NotProved):
            check_inclusion(found["head"]["signed"], keys, position, "00" * 32, found["hashes"])


def test_newer_head_is_proved_to_continue_an_older_one(
    plane: RunningPlane, client: httpx.Client, key_file: Path
) -> None:
    older = await_sealed(plane)
    register_node(plane, "n2")
    newer = await_sealed(plane)
    query = {"first": older["size"], "second": newer["size"]}
    found = client.get("/audit/consistency", params=query).json()
    keys = trusted_keys([key_file.read_text()])

    assert check_succession(older["signed"], newer["signed"], keys, found["hashes"]).text == newer["signed"]
    with pytest.raises(NotProved, match="the history up to position"):
        check_succession(older["signed"], newer["signed"], keys, found["hashes"][1:])
    with pytest.raises(NotProved, match="is older than the kept head"):
        check_succession(newer["signed"], older["signed"], keys, found["hashes"])


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/audit/proofs/999999", 409, "not_sealed"),
        ("/audit/proofs/1?size=999999", 409, "not_sealed"),
        ("/audit/proofs/3?size=2", 422, "invalid_value"),
        ("/audit/consistency?first=999999", 409, "not_sealed"),
        ("/audit/consistency?first=3&second=2", 422, "range_reversed"),
    ],
)
def test_proof_that_does_not_exist_is_refused_with_a_reason(
    plane: RunningPlane, client: httpx.Client, path: str, status: int, code: str
) -> None:
    await_sealed(plane)
    answer = client.get(path)

    assert (answer.status_code, [each["code"] for each in answer.json()["reasons"]]) == (status, [code])


def test_caller_without_the_scope_reads_neither_heads_nor_the_export(plane: RunningPlane) -> None:
    secret = issue(plane, "limited", "caller", projects=["default"]).secret
    for path in ("heads", "proofs/1", "consistency?first=1", "export"):
        answer = httpx.get(
            f"{plane.url}/v1/audit/{path}", headers={"Authorization": f"Bearer {secret}"}, timeout=20
        )
        assert answer.status_code == 403, path


def test_auditor_keeps_heads_and_verifies_an_export_with_them(
    plane: RunningPlane, sliceplane: Run, key_file: Path, tmp_path: Path
) -> None:
    kept, file = tmp_path / "heads", tmp_path / "ledger.zst"
    first = await_sealed(plane)
    assert sliceplane("audit", "head", "--keep", kept, "--key", key_file).code == 0
    register_node(plane, "n3")
    second = await_sealed(plane)
    done = sliceplane("audit", "head", "--keep", kept, "--key", key_file)
    assert (done.code, f"{second['size']:,}" in done.out) == (0, True)
    assert [head_of(line).head.size for line in kept.read_text().split()] == [first["size"], second["size"]]

    assert sliceplane("audit", "export", file).code == 0
    done = sliceplane("audit", "verify", file, "--key", key_file, "--head", kept)
    assert (done.code, done.err) == (0, "")
    assert "the history is as it was sealed" in done.out
    assert "2 in the export" in done.out

    document = sliceplane("audit", "verify", file, "--key", key_file, "--head", kept, "-o", "json").document
    assert isinstance(document, dict)
    assert (document["verdict"], document["differences"]) == ("as_sealed", [])
    assert document["sealed"] >= second["size"]
    assert document["kept_heads"] == 2


def test_export_that_is_older_than_a_kept_head_must_be_repeated(
    plane: RunningPlane, sliceplane: Run, key_file: Path, tmp_path: Path
) -> None:
    kept, file = tmp_path / "heads", tmp_path / "ledger.zst"
    await_sealed(plane)
    assert sliceplane("audit", "export", file).code == 0
    register_node(plane, "n7")
    await_sealed(plane)
    assert sliceplane("audit", "head", "--keep", kept, "--key", key_file).code == 0
    done = sliceplane("audit", "verify", file, "--key", key_file, "--head", kept, "-o", "json")
    [found] = json.loads(done.out)["differences"]
    assert (done.code, found["kind"]) == (1, "head_missing")
    assert "the head was sealed after the export of" in found["what"]
    assert "export again" in found["what"]


def test_wrong_key_is_named_as_a_possible_cause_and_not_as_a_change(
    plane: RunningPlane, sliceplane: Run, key_file: Path, tmp_path: Path
) -> None:
    kept, file, wrong = tmp_path / "heads", tmp_path / "ledger.zst", tmp_path / "wrong.pem"
    await_sealed(plane)
    assert sliceplane("audit", "head", "--keep", kept, "--key", key_file).code == 0
    assert sliceplane("audit", "export", file).code == 0
    wrong.write_text(Signer.of_pem(new_private_key()).public)
    done = sliceplane("audit", "verify", file, "--key", wrong, "--head", kept)
    assert (done.code, "check the files of --key" in done.err) == (1, True)
    assert "no kept head was given" not in done.out
    assert "not as it was sealed" not in done.err


def test_head_is_kept_on_a_line_of_its_own_after_a_line_without_an_end_and_not_after_a_part_of_a_line(
    plane: RunningPlane, sliceplane: Run, key_file: Path, tmp_path: Path
) -> None:
    kept, words = tmp_path / "heads", ("audit", "head", "--keep", tmp_path / "heads", "--key", key_file)
    first = await_sealed(plane)["signed"]
    kept.write_text(first)
    register_node(plane, "n8")
    await_sealed(plane)
    assert sliceplane(*words).code == 0
    assert kept.read_text().splitlines()[0] == first
    assert len(kept.read_text().splitlines()) == 2
    kept.write_text(f"{first}\n{first[:30]}")
    done = sliceplane(*words)
    assert (done.code, "the last line of" in done.err) == (2, True)
    assert kept.read_text() == f"{first}\n{first[:30]}"


def test_verdict_about_a_changed_export_names_the_position_and_ends_with_code_1(
    plane: RunningPlane, sliceplane: Run, key_file: Path, tmp_path: Path
) -> None:
    await_sealed(plane)
    file = tmp_path / "ledger.zst"
    assert sliceplane("audit", "export", file).code == 0
    lines = decompressed(file.read_bytes())
    removed = next(number for number, line in enumerate(lines) if line.startswith(b'["sealed"'))
    file.write_bytes(compressed(lines[:removed] + lines[removed + 1 :]))

    done = sliceplane("audit", "verify", file, "--key", key_file)

    assert done.code == 1
    assert "row_removed" in done.out
    assert "the history is not as it was sealed" in done.err
    failed = sliceplane("audit", "verify", file, "--key", key_file, "-o", "json")
    assert json.loads(failed.out)["differences"][0] == {
        "kind": "row_removed",
        "position": 1,
        "what": "the sealed row was removed",
    }


def test_head_that_contradicts_a_kept_head_is_refused_and_not_kept(
    plane: RunningPlane, sliceplane: Run, key_file: Path, tmp_path: Path
) -> None:
    head = head_of(await_sealed(plane)["signed"]).head
    assert plane.sealing.sealing_key_file is not None
    signer = Signer.of_pem(plane.sealing.sealing_key_file.read_bytes())
    fork = type(head)(head.number, head.size - 1, "00" * 32, head.epoch, head.sealed_at, None, head.state)
    kept = tmp_path / "heads"
    kept.write_text(sign_head(signer, fork).text + "\n")

    done = sliceplane("audit", "head", "--keep", kept, "--key", key_file)

    assert done.code == 1
    assert len(kept.read_text().split()) == 1
    other = tmp_path / "other.pem"
    other.write_text(Signer.of_pem(new_private_key()).public)
    done = sliceplane("audit", "head", "--keep", tmp_path / "new", "--key", other)
    assert (done.code, (tmp_path / "new").exists()) == (1, False)
    assert "is not one of the trusted keys" in done.err


def test_audit_watch_keeps_each_new_head_and_fails_at_the_first_head_that_contradicts_a_kept_one(
    plane: RunningPlane, key_file: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "heads"
    environment = {"SLICEPLANE_URL": plane.url, "SLICEPLANE_API_KEY": ADMIN_KEY, "HOME": str(tmp_path)}
    words = ("audit", "watch", "--keep", kept, "--key", key_file, "--interval", 0.1)
    command = installed_program("sliceplane", *map(str, words))
    with subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.PIPE) as watching:
        try:
            first = await_sealed(plane)
            until(lambda: kept.exists() and first["signed"] in kept.read_text(), "the first head is kept")
            register_node(plane, "n5")
            second = await_sealed(plane)
            until(lambda: second["signed"] in kept.read_text(), "the next head is kept")
            head = head_of(second["signed"]).head
            signer = Signer.of_pem(key_file.with_name("sealing-key.pem").read_bytes())
            # A head with a higher number, of a history that this control plane does not have.
            fork = msgspec.structs.replace(head, number=head.number + 1000, root="00" * 32)
            with kept.open("a") as file:
                file.write(sign_head(signer, fork).text + "\n")
            _, shown = watching.communicate(timeout=30)
        finally:
            watching.kill()

    assert (watching.returncode, b"is older than the kept head" in shown) == (1, True)


def test_watch_continues_after_an_outage_and_keeps_each_head_once(
    plane: RunningPlane, sliceplane: Run, key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await_sealed(plane)
    register_node(plane, "n6")
    second = await_sealed(plane)
    with plane.client() as client:
        sizes = {"first": first["size"], "second": second["size"]}
        proof = client.get("/audit/consistency", params=sizes).json()
    kept = tmp_path / "heads"
    with running_plane() as scripted:
        outage = problem(503, "unavailable", "the API restarts")
        scripted.script(
            "GET /v1/audit/heads", outage, page(first), page(first), outage, outage, page(second), page(first)
        )
        scripted.script("GET /v1/audit/consistency", document(proof))
        monkeypatch.setenv("SLICEPLANE_URL", scripted.url)
        done = sliceplane("audit", "watch", "--keep", kept, "--key", key_file, "--interval", 0.1)

    assert kept.read_text().splitlines() == [first["signed"], second["signed"]]
    assert (done.code, done.err.count("connection lost, retrying")) == (1, 2)
    assert "is older than the kept head" in done.err


def test_proof_of_an_event_is_shown_and_checked_with_the_key(
    plane: RunningPlane, sliceplane: Run, key_file: Path
) -> None:
    await_sealed(plane)
    done = sliceplane("audit", "prove", 1, "--key", key_file)

    assert done.code == 0
    assert "includes position 1; signature and proof are valid" in done.err
    [(leaf,)] = plane.rows("select encode(leaf, 'hex') from ledger.event where position = 1")
    assert leaf in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("verify", "{missing}", "--key", "{key}"), "cannot be read"),
        (("verify", "{key}", "--key", "{missing}"), "cannot be read"),
        (("verify", "{key}", "--key", "{private}"), "is not a public key"),
        (("export", "{key}"), "exists already"),
        (("head", "--keep", "{missing}"), "needs the public key"),
    ],
)
def test_audit_command_with_an_unusable_file_names_the_problem_and_exits_with_code_2(
    sliceplane: Run, key_file: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    private = key_file.with_name("sealing-key.pem")
    files = {"missing": tmp_path / "missing", "key": key_file, "private": private}

    done = sliceplane("audit", *(word.format(**files) for word in words))

    assert done.code == 2
    assert message in " ".join(done.err.split())


def test_sink_file_of_a_running_sealer_holds_every_head(plane: RunningPlane) -> None:
    head, file = await_sealed(plane), plane.sealing.heads_file
    assert file is not None

    def shipped() -> bool:
        return head["signed"] in file.read_text().split()

    until(shipped, "the newest head is in the file")
    numbers = [head_of(line).head.number for line in file.read_text().split()]
    assert numbers == [*range(1, len(numbers) + 1)]


FAILING = "https://heads.example/store"


@pytest.fixture
def failing_sink(plane: RunningPlane) -> Iterator[None]:
    insert = "insert into work.head_sink (name, failing_since, error) values (%(name)s, now(), %(error)s) returning 1"
    plane.rows(insert, name=FAILING, error=f"{FAILING} answered 503")
    yield
    plane.rows("delete from work.head_sink where name = %(name)s returning 1", name=FAILING)


def test_list_of_sinks_shows_the_newest_head_that_each_sink_has_stored(
    plane: RunningPlane, client: httpx.Client
) -> None:
    def stored() -> bool:
        shown = client.get("/audit/sinks").json()
        return [each["number"] for each in shown["sinks"]] == [shown["newest"]]

    until(stored, "the file has the newest head")
    [found] = client.get("/audit/sinks").json()["sinks"]
    assert (found["name"], found["error"]) == (str(plane.sealing.heads_file), None)


@pytest.mark.usefixtures("failing_sink")
def test_list_of_sinks_shows_the_reason_why_a_sink_stores_no_heads(
    client: httpx.Client, sliceplane: Run
) -> None:
    assert client.get("/status").json()["failing_sinks"] == [FAILING]
    shown = sliceplane("audit", "sinks")
    assert shown.code == 1
    assert f"{FAILING} answered 503" in " ".join(shown.out.split())
    assert f"{FAILING} stores no heads" in shown.err
    assert FAILING in sliceplane("status").out
