-- The readers' side of append's fence: how far the ledger is final, which gaps are dead, and the start of an epoch.

-- Returns the last drawn position, 0 for none, read under the lock under which positions are drawn.
--
-- A plain select from the sequence is not exact: because only every 32nd draw is written to the WAL, it can see a value that
-- is 32 too high (nextval_internal in sequence.c). A reader would then treat positions as gaps that are drawn only later, by
-- appenders that take the fence after it has read the holders.
create function ledger.drawn() returns bigint language sql volatile as $$
  select coalesce(pg_catalog.pg_sequence_last_value('ledger.position_seq'::regclass), 0);
$$;

-- Returns the last drawn position and then the holders of the fence, read in this order by separate statements. Every
-- transaction that drew a position up to `last` and has not ended is among the holders. Without holders, all events up to
-- `last` are visible to a statement begun after this call.
create function ledger.fence(out last bigint, out holders text[]) language plpgsql volatile as $$
begin
  last := ledger.drawn();
  select coalesce(array_agg(l.virtualtransaction), '{}') into holders from pg_catalog.pg_locks l
   where l.locktype = 'advisory' and l.classid = 21328 and l.objid = 1 and l.objsubid = 2
     and l.mode = 'ShareLock' and l.granted
     and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database());
end $$;

-- Stores the current holders of the fence for each gap that is not registered yet. SP006 for a position never drawn.
create function ledger.note_gaps(gaps bigint[]) returns void language plpgsql volatile
security definer set search_path = pg_catalog, pg_temp as $$
declare
  seen record;
begin
  seen := ledger.fence();
  if exists (select from unnest(gaps) g where g < 1 or g > seen.last) then
    raise exception 'one of the positions was never drawn' using errcode = 'SP006', detail = '{}';
  end if;
  delete from ledger.gap g where exists (select from ledger.event e where e.position = g.position)
                              or exists (select from ledger.dead_position d where d.position = g.position);
  insert into ledger.gap
  select g, seen.holders from unnest(gaps) g
   where not exists (select from ledger.event e where e.position = g)
     and not exists (select from ledger.dead_position d where d.position = g)
  on conflict do nothing;
end $$;

-- Records which of the positions can never be written any more, and returns them. It does not trust the caller: any
-- transaction that held the fence when the gap was registered, or holds it now, may have drawn the position, so it waits
-- until all of them release it.
-- SP006 for a position never drawn or a snapshot that would hide events, SP007 if a suspect stays for a second.
create function ledger.note_dead(wanted bigint[], seen_by text) returns bigint[] language plpgsql volatile
security definer set search_path = pg_catalog, pg_temp as $$
declare
  seen     record;
  suspects text[];
  deadline constant timestamptz := clock_timestamp() + interval '1 second';
  noted    bigint[];
begin
  if current_setting('transaction_isolation') <> 'read committed' or pg_client_encoding() <> 'UTF8' then
    raise exception 'note_dead needs isolation level read committed and client encoding UTF8' using errcode = 'SP006', detail = '{}';
  end if;
  perform set_config('synchronous_commit', 'on', true);
  seen := ledger.fence();
  if exists (select from unnest(wanted) w where w < 1 or w > seen.last) then
    raise exception 'one of the positions was never drawn' using errcode = 'SP006', detail = '{}';
  end if;
  select array_agg(distinct s) into suspects
    from unnest(wanted) w
    left join ledger.gap g on g.position = w
   cross join unnest(coalesce(g.suspects, seen.holders)) s;
  while suspects && (select f.holders from ledger.fence() f) loop
    if clock_timestamp() > deadline then
      raise exception 'an event may still be written at one of the positions; retry later' using errcode = 'SP007', detail = '{}';
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
  delete from ledger.gap g where g.position = any(wanted);
  return noted;
end $$;

-- Begins the next epoch (after a restore or a failover). Only the owner may call it. Appends wait for it and then use the new epoch.
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
