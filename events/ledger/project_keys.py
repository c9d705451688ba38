"""The keys of projects in `keys.project_key`: find the key for an append, create it, destroy it.

Each process has one key ring, which `use_master_key` sets at its start. A row of the ledger is read together with the
encrypted secret of its key (`SECRET`), so that a reader needs no query of its own, and an erasure applies to all
processes at once. An append uses a cached key, and verifies in its own statement that the key was not destroyed. Only
committed keys are cached.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import psycopg
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from events.ledger.connection import fetch_row, fetch_rows, fetch_values
from events.ledger.personal import (
    PERSONAL_FIELDS,
    MasterKey,
    NoPersonalKey,
    ProjectKey,
    UnreadablePersonalData,
    key_of,
)
from events.values import ProjectId

_CACHED: Final = 4096
_TYPES: Final = ", ".join(f"'{each}'" for each in PERSONAL_FIELDS)
SECRET: Final = (
    f"case when type in ({_TYPES}) then (select coalesce(secret, '') from keys.project_key"  # noqa: S608 (constants)
    """ where key_id = (select substring(data from '"personal":\\{"key":"([^"]+)"'))) end"""
)
"""SQL expression over a row of `ledger.event`: the encrypted secret of its key; an empty text if the key was destroyed;
null if the key does not exist, or the event has no personal data.

The innermost select is evaluated once per event. Without it, a sequential scan, which Postgres chooses for a table of
few keys, would search the text of the event again for each key.
"""
_LIVE: Final = (
    "select project, key_id, secret, coalesce(current_setting('sliceplane.new_project_key', true), '') = '' as committed"
    " from keys.project_key where project = any(%s) and secret is not null"
)
# The setting marks a transaction that has created a key. It is reset at the end of the transaction, and when the
# savepoint in which the row was inserted is rolled back. If another transaction has created the key, no row is inserted
# and the setting is not set.
_NEW: Final = (
    "insert into keys.project_key (key_id, project, secret, created_at) values (%s, %s, %s, clock_timestamp())"
    " on conflict (project) where secret is not null do nothing"
    " returning set_config('sliceplane.new_project_key', 'true', true)"
)
_DESTROY: Final = (
    "update keys.project_key set secret = null, destroyed_at = clock_timestamp()"
    " where project = %s and secret is not null returning key_id"
)
_BY_ID: Final = "select project, key_id, secret from keys.project_key where key_id = %s"
_ANY: Final = "select project, key_id, secret from keys.project_key where secret is not null order by created_at limit 1"


class _KeyRow:
    def __init__(self, project: str, key_id: str, secret: bytes | None, *, committed: bool = False) -> None:
        self.project, self.key_id, self.secret = ProjectId(project), key_id, secret
        self.committed = committed


class KeyRing:
    """The master key, and the newest committed keys of projects that this process has used, by database."""

    def __init__(self, master: MasterKey) -> None:
        self.master = master
        self._keys: OrderedDict[tuple[str, ProjectId], ProjectKey] = OrderedDict()

    def cached(self, database: str, projects: Iterable[ProjectId]) -> dict[ProjectId, ProjectKey]:
        """Return the cached keys of these projects."""
        return {each: key for each in projects if (key := self._keys.get((database, each))) is not None}

    def add(self, database: str, project: ProjectId, key: ProjectKey) -> None:
        """Cache a committed key of a project, and drop the oldest one beyond the limit."""
        self._keys[database, project] = key
        if len(self._keys) > _CACHED:
            self._keys.popitem(last=False)

    def forget(self, database: str, projects: Iterable[ProjectId]) -> None:
        """Drop the cached keys of these projects."""
        for each in projects:
            self._keys.pop((database, each), None)


def database_of(conn: psycopg.AsyncConnection) -> str:
    """Return the server and the name of a connection's database, by which a key ring caches keys: one process may
    use databases with the same name on several servers.
    """
    return f"{conn.info.host}:{conn.info.port}/{conn.info.dbname}"


_ring: KeyRing | None = None


def use_master_key(master: MasterKey) -> None:
    """Use this master key for all reads and appends of the process."""
    global _ring  # noqa: PLW0603, one key ring per process, as its start configures it
    _ring = KeyRing(master)


def ring() -> KeyRing:
    """Return the key ring of the process. Raises `NoPersonalKey` if the process has none."""
    if _ring is None:
        raise NoPersonalKey(
            "SLICEPLANE_PERSONAL_KEY_FILE is not set: name a file with 32 random bytes in Base64"
        )
    return _ring


def cipher_of(data: str, secret: bytes | None) -> AESGCM | None:
    """Return the cipher for the personal data of a row, given the value of `SECRET`; None if its key was destroyed.
    Raises `UnreadablePersonalData`.
    """
    key_id = key_of(data)
    if secret is None or key_id is None:
        raise UnreadablePersonalData(
            f"the key {key_id} of its personal data does not exist and was not destroyed; restore keys.project_key"
        )
    return ring().master.unwrapped(key_id, bytes(secret)) if secret else None


async def keys_for(
    conn: psycopg.AsyncConnection, projects: Collection[ProjectId]
) -> Mapping[ProjectId, ProjectKey]:
    """Return the key of each of these projects for an append in the caller's transaction. A project without one gets it
    in this transaction. Raises `UnreadablePersonalData` if the master key is another one.
    """
    found = ring().cached(database_of(conn), projects)
    missing = sorted(set(projects) - found.keys())
    if not missing:
        return found
    found |= await _stored(conn, missing)
    # In the order of the projects, in which every transaction inserts them.
    new = [each for each in missing if each not in found]
    for project in new:
        key, wrapped = ring().master.new_key()
        await conn.execute(_NEW, [key.key_id, project, wrapped])
    # Another transaction may have created a key at the same time, for which the insert has waited.
    return found | (await _stored(conn, new) if new else {})


async def _stored(conn: psycopg.AsyncConnection, projects: list[ProjectId]) -> dict[ProjectId, ProjectKey]:
    """Read the keys of these projects, and cache the committed ones.

    A transaction that has created a key caches none of the keys that it reads later, because one of them may be its own
    uncommitted key, which a rollback would remove.
    """
    found: dict[ProjectId, ProjectKey] = {}
    for row in await fetch_rows(conn, _KeyRow, _LIVE, [projects], prepare=True):
        found[row.project] = key = ProjectKey(row.key_id, _cipher(row))
        if row.committed:
            ring().add(database_of(conn), row.project, key)
    return found


def _cipher(row: _KeyRow) -> AESGCM:
    assert row.secret is not None, "the query selects keys with a secret"
    return ring().master.unwrapped(row.key_id, row.secret)


async def cipher_by_id(conn: psycopg.AsyncConnection, key_id: str) -> AESGCM | None:
    """Return the cipher of the key with this id; None if it was destroyed. Raises `UnreadablePersonalData`."""
    row = await fetch_row(conn, _KeyRow, _BY_ID, [key_id])
    if row is None:
        raise UnreadablePersonalData(f"the key {key_id} does not exist; restore keys.project_key")
    return None if row.secret is None else _cipher(row)


async def destroy(conn: psycopg.AsyncConnection, project: ProjectId) -> list[str]:
    """Destroy the key of a project in the caller's transaction and return the ids: one, or none if there is no key."""
    ring().forget(database_of(conn), [project])
    return await fetch_values(conn, _DESTROY, [project])


async def refuse_other_master_key(conn: psycopg.AsyncConnection) -> None:
    """Check that the master key can decrypt the keys of this database. Raises `NoPersonalKey`."""
    try:
        row = await fetch_row(conn, _KeyRow, _ANY)
    except psycopg.errors.UndefinedTable:
        return  # the readiness check reports a database that is not migrated
    if row is None:
        return
    try:
        _cipher(row)
    except UnreadablePersonalData as error:
        raise NoPersonalKey(
            f"the personal key file {ring().master.source} is not that of this database: {error}; restore the right file"
        ) from error
