-- Who may still write a gap. Told of one early, the server knows later that it is dead although others hold the fence
-- by then: without this, appenders that idle one after the other would hold a gap open for ever (promise P29).

-- Unlogged: a crash ends every suspect, and takes back positions that were drawn; what is said here goes with them.
create unlogged table ledger.gap (
  position bigint not null primary key,
  suspects text[] not null  -- whoever held the fence after it was drawn, as in pg_locks.virtualtransaction
);

-- Remembers who holds the fence now for each of these gaps that is not known yet. SP006 for one never drawn.
create function ledger.note_gaps(gaps bigint[]) returns void language plpgsql volatile
security definer set search_path = pg_catalog, pg_temp as $$
declare
  seen record;
begin
  seen := ledger.fence();
  if exists (select from unnest(gaps) g where g < 1 or g > seen.last) then
    raise exception 'a position that was never drawn' using errcode = 'SP006', detail = '{}';
  end if;
  delete from ledger.gap g where exists (select from ledger.event e where e.position = g.position)
                              or exists (select from ledger.dead_position d where d.position = g.position);
  insert into ledger.gap
  select g, seen.holders from unnest(gaps) g
   where not exists (select from ledger.event e where e.position = g)
     and not exists (select from ledger.dead_position d where d.position = g)
  on conflict do nothing;
end $$;

-- Records which of the positions can never be written any more, and returns them. It believes nobody: whoever held
-- the fence when a gap was noted, or holds it now, may be the one who drew a position, so it waits for these to let go.
-- SP006 for a position never drawn or a snapshot that would hide events, SP007 when a suspect stays a second.
create or replace function ledger.note_dead(wanted bigint[], seen_by text) returns bigint[] language plpgsql volatile
security definer set search_path = pg_catalog, pg_temp as $$
declare
  seen     record;
  suspects text[];
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
  select array_agg(distinct s) into suspects
    from unnest(wanted) w
    left join ledger.gap g on g.position = w
   cross join unnest(coalesce(g.suspects, seen.holders)) s;
  while suspects && (select f.holders from ledger.fence() f) loop
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
  delete from ledger.gap g where g.position = any(wanted);
  return noted;
end $$;

revoke all on function ledger.note_gaps from public;
grant execute on function ledger.note_gaps to sliceplane_app;
