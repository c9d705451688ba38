from tests.servers.postgres import conn, connect, database, postgres_programs, postgres_server

__all__ = ["conn", "connect", "database", "postgres_programs", "postgres_server"]
