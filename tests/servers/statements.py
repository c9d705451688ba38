"""SQL statements of a test on one kept connection, because opening a connection takes longer than most queries."""

import threading

import psycopg
from psycopg.rows import TupleRow


class Statements:
    """Statements on one database. Thread-safe: a statement that is run while another one waits for a lock gets a
    connection of its own.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._turn = threading.Lock()
        self._kept: psycopg.Connection | None = None

    def rows(self, query: str, values: dict[str, object]) -> list[TupleRow]:
        """Run a statement in a transaction of its own and return its rows; none if it has no result. `values` fill
        `%(name)s` in the statement.
        """
        if not self._turn.acquire(blocking=False):
            with self._open() as conn:
                return _fetched(conn.execute(query, values or None))
        try:
            return self._run(query, values)
        finally:
            self._turn.release()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def _run(self, query: str, values: dict[str, object]) -> list[TupleRow]:
        try:
            if self._kept is None or self._kept.closed:
                self._kept = self._open()
            return _fetched(self._kept.execute(query, values or None))
        except psycopg.OperationalError:
            # The test or its server ended the kept connection since the last query.
            if self._kept is None or not self._kept.closed:
                raise
        self._kept = self._open()
        return _fetched(self._kept.execute(query, values or None))

    def _open(self) -> psycopg.Connection:
        # Without prepared statements, which would become invalid if a test alters a table.
        return psycopg.connect(self._dsn, autocommit=True, prepare_threshold=None)


def _fetched(cursor: psycopg.Cursor) -> list[TupleRow]:
    return [] if cursor.description is None else cursor.fetchall()
