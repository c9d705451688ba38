-- What the application may do with the ledger: read all of it, and call these four (LED-6, promise P14).

revoke all on all functions in schema ledger from public;
grant select on all tables in schema ledger to sliceplane_app;
grant select on all sequences in schema ledger to sliceplane_app;
grant execute on function ledger.append, ledger.take_key, ledger.note_dead, ledger.fence to sliceplane_app;
grant execute on function ledger.current_epoch to sliceplane_app;
