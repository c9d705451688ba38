-- The last position that was drawn, 0 for none, read under the lock under which positions are drawn.
--
-- A plain select from the sequence is not: while every 32nd draw is written to the log, it can see a value 32 too high
-- (nextval_internal in sequence.c). A reader told so takes positions for gaps that are drawn only then, by appenders
-- who hold the fence later than he looked.
create function ledger.drawn() returns bigint language sql volatile as $$
  select coalesce(pg_catalog.pg_sequence_last_value('ledger.position_seq'::regclass), 0);
$$;

-- The last position drawn, and then who holds the fence: in this order, statement by statement. Whoever drew a
-- position up to `last` and has not ended is among the holders. With none, all events up to `last` are there for
-- a statement begun after this call.
create or replace function ledger.fence(out last bigint, out holders text[]) language plpgsql volatile as $$
begin
  last := ledger.drawn();
  select coalesce(array_agg(l.virtualtransaction), '{}') into holders from pg_catalog.pg_locks l
   where l.locktype = 'advisory' and l.classid = 21328 and l.objid = 1 and l.objsubid = 2
     and l.mode = 'ShareLock' and l.granted
     and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database());
end $$;

revoke all on function ledger.drawn from public;
grant execute on function ledger.drawn to sliceplane_app;
