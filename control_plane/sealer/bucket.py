"""The sink of heads in an S3-compatible object store with object lock.

Each head is an object of its own, which cannot be deleted or replaced until its retention ends, not even by the owner
of the bucket (mode COMPLIANCE). The names of objects descend with the numbers of the heads, because stores list names
in ascending order only: the first name is that of the newest head.
"""

import asyncio
import io
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit
from xml.etree.ElementTree import ParseError

import urllib3
from minio import Minio
from minio.commonconfig import COMPLIANCE
from minio.error import MinioException
from minio.retention import Retention
from urllib3.exceptions import HTTPError

from control_plane.audit.heads import BadHead, SignedHead, head_of
from control_plane.sealer.sinks import CONTENT_TYPE, TIMEOUT_SECONDS, SinkUnavailable, public_url

_LARGEST: Final = 10**15
# `ParseError`: another server answers at this address, such as a proxy with a page of its own.
_ERRORS: Final = (MinioException, HTTPError, ParseError, OSError, ValueError)


class BucketSink:
    """A bucket with object lock. `url` is `https://HOST[:PORT]/BUCKET[/PREFIX]`; `retention` is the time for which the
    store keeps each head.
    """

    def __init__(
        self,
        url: str,
        access_key: str,
        secret_key: str,
        *,
        region: str,
        retention: timedelta,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        parts = urlsplit(url)
        self._url, self._retention, self._now = url, retention, now
        self._bucket, _, prefix = parts.path.strip("/").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        # One attempt: the sealer itself repeats what failed, and must not wait for minutes in between.
        pool = urllib3.PoolManager(timeout=TIMEOUT_SECONDS, retries=False)
        self._store = Minio(
            parts.netloc,
            access_key=access_key,
            secret_key=secret_key,
            region=region,
            secure=parts.scheme == "https",
            http_client=pool,
        )

    @property
    def name(self) -> str:
        return public_url(self._url)

    async def last(self) -> SignedHead | None:
        return await asyncio.to_thread(self._last)

    async def send(self, head: SignedHead) -> None:
        await asyncio.to_thread(self._put, head)

    def object_name(self, number: int) -> str:
        """Return the name of the object with the head of this number."""
        return f"{self._prefix}{_LARGEST - number:015d}-head-{number}.jws"

    def _put(self, head: SignedHead) -> None:
        content = head.text.encode()
        # A store refuses an object with a retention and without a checksum; over HTTP, the client adds none.
        checksum = b64encode(sha256(content).digest()).decode()
        try:
            self._store.put_object(
                self._bucket,
                self.object_name(head.head.number),
                io.BytesIO(content),
                len(content),
                content_type=CONTENT_TYPE,
                metadata={"x-amz-sdk-checksum-algorithm": "SHA256", "x-amz-checksum-sha256": checksum},
                retention=Retention(COMPLIANCE, self._now() + self._retention),
            )
        except _ERRORS as error:
            raise SinkUnavailable(f"{self.name} did not store head {head.head.number}: {error}") from error

    def _last(self) -> SignedHead | None:
        try:
            for each in self._store.list_objects(self._bucket, prefix=self._prefix):
                if each.object_name is not None and each.object_name.endswith(".jws"):
                    return self._read(each.object_name)
        except _ERRORS as error:
            raise SinkUnavailable(f"{self.name} cannot be listed: {error}") from error
        return None

    def _read(self, name: str) -> SignedHead:
        response = self._store.get_object(self._bucket, name)
        try:
            return head_of(response.read().decode(errors="replace"))
        except BadHead as bad:
            raise SinkUnavailable(f"{self.name}: the object {name} is not a head: {bad}") from bad
        finally:
            response.close()
            response.release_conn()
