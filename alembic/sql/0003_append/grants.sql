-- The application brings along the path that append would otherwise have to set in every transaction.
alter role sliceplane_app set search_path = pg_catalog, pg_temp;

revoke all on function ledger.append, ledger.append_many from public;
grant execute on function ledger.append, ledger.append_many to sliceplane_app;
