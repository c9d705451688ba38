"""Tests of the sink that keeps signed heads in an S3-compatible store with object lock; moto provides the store."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from minio import Minio
from minio.commonconfig import COMPLIANCE
from minio.error import S3Error
from moto.server import ThreadedMotoServer

from control_plane.audit.heads import SignedHead, head_of
from control_plane.sealer.bucket import BucketSink
from control_plane.sealer.program import LedgerRestored, first_to_send, refuse_restored_ledger
from control_plane.sealer.sinks import FileSink, SinkUnavailable
from control_plane.settings import SealerSettings
from tests.agent.histories import History, leaves_of
from tests.audit.sealed import seal
from tests.ledger.given import committed, on
from tests.servers.postgres import Database

NOW = datetime.now(UTC)
HEADS = [head_of(text) for text in History(leaves_of("one", 12), range(1, 13)).heads]


@pytest.fixture
def server() -> Iterator[ThreadedMotoServer]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    # The servers of a process share their buckets.
    host, port = server.get_host_and_port()
    httpx.post(f"http://{host}:{port}/moto-api/reset").raise_for_status()
    yield server
    server.stop()


@pytest.fixture
def url(server: ThreadedMotoServer) -> str:
    host, port = server.get_host_and_port()
    return f"http://{host}:{port}"


@pytest.fixture
def store(url: str) -> Minio:
    """Client of the owner of the store, with a bucket `heads` with object lock."""
    client = Minio(urlsplit(url).netloc, "owner", "secret", secure=False, region="us-east-1")
    client.make_bucket("heads", object_lock=True)
    return client


def sink_of(url: str, bucket: str = "heads/ledger-1") -> BucketSink:
    return BucketSink(
        f"{url}/{bucket}",
        "sealer",
        "secret",
        region="us-east-1",
        retention=timedelta(days=30),
        now=lambda: NOW,
    )


@pytest.fixture
def sink(url: str, store: Minio) -> BucketSink:
    return sink_of(url)


async def test_bucket_keeps_every_head_and_returns_the_newest(sink: BucketSink, store: Minio) -> None:
    assert await sink.last() is None
    for head in HEADS:
        await sink.send(head)
        assert await sink.last() == head
    await sink.send(HEADS[-1])

    listed = [each.object_name for each in store.list_objects("heads", recursive=True)]
    assert listed == [sink.object_name(head.head.number) for head in reversed(HEADS)]
    for head, name in zip(reversed(HEADS), listed, strict=True):
        assert store.get_object("heads", str(name)).read().decode() == head.text


async def test_head_in_a_bucket_is_locked_against_deletion_until_its_retention_ends(
    sink: BucketSink, store: Minio
) -> None:
    await sink.send(HEADS[0])
    [stored] = store.list_objects("heads", recursive=True, include_version=True)
    assert stored.object_name is not None
    found = store.stat_object("heads", stored.object_name).metadata or {}
    until = datetime.fromisoformat(found["x-amz-object-lock-retain-until-date"])
    assert found["x-amz-object-lock-mode"] == COMPLIANCE
    assert abs(until - (NOW + timedelta(days=30))) < timedelta(seconds=1)
    with pytest.raises(S3Error, match=r"Access ?Denied"):
        store.remove_object("heads", stored.object_name, stored.version_id)


@pytest.mark.parametrize("bucket", ["nowhere/ledger-1", "unlocked"])
async def test_bucket_that_refuses_a_head_is_reported_as_an_unavailable_sink(
    url: str, store: Minio, bucket: str
) -> None:
    store.make_bucket("unlocked")
    with pytest.raises(SinkUnavailable, match="did not store head 1"):
        await sink_of(url, bucket).send(HEADS[0])


async def test_bucket_that_does_not_answer_is_reported_as_an_unavailable_sink(
    sink: BucketSink, server: ThreadedMotoServer
) -> None:
    server.stop()
    with pytest.raises(SinkUnavailable, match="did not store head 1"):
        await sink.send(HEADS[0])
    with pytest.raises(SinkUnavailable, match="cannot be listed"):
        await sink.last()


async def test_object_in_the_bucket_that_is_not_a_head_makes_the_sink_unavailable(sink: BucketSink) -> None:
    await sink.send(SignedHead(HEADS[0].head, "no head"))
    with pytest.raises(SinkUnavailable, match="is not a head"):
        await sink.last()


async def test_ledger_without_the_newest_head_of_the_bucket_is_not_sealed(
    conn: psycopg.AsyncConnection, database: Database, admin: psycopg.AsyncConnection, sink: BucketSink
) -> None:
    await committed(conn, on("a", 0))
    await sink.send(await seal(database))
    await refuse_restored_ledger(admin, [sink])
    assert await first_to_send(admin, sink) == 1
    await admin.execute("delete from ledger.tree_head")
    with pytest.raises(LedgerRestored, match="holds head 1 of 1 positions in epoch 1"):
        await refuse_restored_ledger(admin, [sink])


async def test_unavailable_sink_does_not_prevent_the_check_of_the_other_sinks(
    conn: psycopg.AsyncConnection,
    database: Database,
    admin: psycopg.AsyncConnection,
    url: str,
    tmp_path: Path,
) -> None:
    await committed(conn, on("a", 0))
    file, away = FileSink(tmp_path / "heads"), sink_of(url, "nowhere")
    await file.send(await seal(database))
    await refuse_restored_ledger(admin, [away, file])
    await admin.execute("delete from ledger.tree_head")
    with pytest.raises(LedgerRestored):
        await refuse_restored_ledger(admin, [away, file])


@pytest.mark.parametrize(
    "given",
    [
        {"heads_bucket_url": "https://store/heads"},
        {"heads_bucket_access_key": "a", "heads_bucket_secret_key": "b"},
        {"heads_bucket_url": "https://store/heads", "heads_bucket_access_key": "a"},
        {"heads_bucket_url": "https://store", "heads_bucket_access_key": "a", "heads_bucket_secret_key": "b"},
    ],
    ids=["no-keys", "no-url", "no-secret", "no-bucket"],
)
def test_settings_of_a_bucket_that_are_not_complete_are_refused(given: dict[str, str]) -> None:
    complete = {"database_url": "postgresql+psycopg:///none", "sealing_key_file": "key.pem"}
    with pytest.raises(ValueError, match=r"require each other|should match pattern"):
        SealerSettings.model_validate({**complete, **given})
