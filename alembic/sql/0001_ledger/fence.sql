-- The other side of append's fence: how far the log is final, which positions are dead, and when an epoch begins.

-- The last position drawn, and then who holds the fence: in this order, statement by statement. Whoever drew a
-- position up to `last` and has not ended is among the holders. With none, all events up to `last` are there for
-- a statement begun after this call.
create function ledger.fence(out last bigint, out holders text[]) language plpgsql volatile as $$
begin
  select case when s.is_called then s.last_value else 0 end into last from ledger.position_seq s;
  select coalesce(array_agg(l.virtualtransaction), '{}') into holders from pg_catalog.pg_locks l
   where l.locktype = 'advisory' and l.classid = 21328 and l.objid = 1 and l.objsubid = 2
     and l.mode = 'ShareLock' and l.granted
     and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database());
end $$;

-- Records which of the positions can never be written any more, and returns them. It believes nobody: whoever
-- holds the fence now may be the one who drew a position, so it waits for each of these to let go.
-- SP006 for a position never drawn or a snapshot that would hide events, SP007 when a holder stays a second.
create function ledger.note_dead(wanted bigint[], seen_by text) returns bigint[] language plpgsql volatile
security definer set search_path = pg_catalog, pg_temp as $$
declare
  seen     record;
  deadline constant timestamptz := clock_timestamp() + interval '1 second';
  noted    bigint[];
begin
  if current_setting('transaction_isolation') <> 'read committed' or pg_client_encoding() <> 'UTF8' then
    raise exception 'read committed and UTF-8 only' using errcode = 'SP006', detail = '{}';
  end if;
  perform set_config('synchronous_commit', 'on', true);
  seen := ledger.fence();
  if exists (select from unnest(wanted) w where w < 1 or w > seen.last) then
    raise exception 'a position that was never drawn' using errcode = 'SP006', detail = '{}';
  end if;
  while seen.holders && (select f.holders from ledger.fence() f) loop
    if clock_timestamp() > deadline then
      raise exception 'the position may still be written' using errcode = 'SP007', detail = '{}';
    end if;
    perform pg_sleep(0.002);
  end loop;
  with dead as (
    insert into ledger.dead_position as written
    select d.position, d.noted_at, d.seen_by, d.epoch, sha256('\x000102'::bytea || record_send(d))
      from (select w as position, clock_timestamp() as noted_at, seen_by as seen_by, ledger.current_epoch() as epoch,
                   null::bytea as leaf
              from unnest(wanted) w
             where not exists (select from ledger.event e where e.position = w)
            offset 0) d
    on conflict do nothing
    returning written.position)
  select coalesce(array_agg(dead.position), '{}') into noted from dead;
  return noted;
end $$;

-- Begins the next epoch (after a restore or a failover), for the owner alone. Appends wait for it and then use it.
create function ledger.begin_epoch(reason text) returns integer language plpgsql volatile
set search_path = pg_catalog, pg_temp as $$
declare
  following integer;
begin
  perform pg_advisory_xact_lock(21328, 1);
  select max(e.epoch) + 1 into strict following from ledger.epoch e;
  insert into ledger.epoch values (following, clock_timestamp(), reason);
  execute format('create or replace function ledger.current_epoch() returns integer '
                 'language sql immutable parallel safe return %s', following);
  return following;
end $$;
