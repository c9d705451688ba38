-- Exchanges a rebuilt set of read model tables with the live one, in two calls within one transaction. Between them, the caller
-- replays the events recorded since its last read, of which there are few.

-- Locks the tables and then the ledger. The tables come first: an append that writes a read model holds its rows already
-- when it takes the fence, so the opposite order could deadlock.
-- Appends wait from the first of these locks on, so the server itself limits each wait and each pause of the caller: if the
-- caller stops here, its transaction is aborted and all others continue.
create function ledger.begin_swap(tables text[]) returns void language plpgsql volatile
security definer set search_path = pg_catalog, pg_temp as $$
declare
  name text;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'begin_swap needs isolation level read committed, because an older snapshot would hide events' using errcode = 'SP006', detail = '{}';
  end if;
  perform set_config('lock_timeout', '50ms', true), set_config('statement_timeout', '200ms', true),
          set_config('idle_in_transaction_session_timeout', '200ms', true);
  foreach name in array tables loop
    execute format('lock table read.%I, idle.%I in access exclusive mode', name, name);
  end loop;
  perform pg_advisory_xact_lock(21328, 1);
end $$;

-- Moves tables with their indexes and permissions; the names stay the same.
create function ledger.end_swap(tables text[]) returns void language plpgsql volatile
security definer set search_path = pg_catalog, pg_temp as $$
declare
  name text;
begin
  foreach name in array tables loop
    execute format('alter table read.%I set schema aside', name);
    execute format('alter table idle.%I set schema read', name);
    execute format('alter table aside.%I set schema idle', name);
  end loop;
end $$;
