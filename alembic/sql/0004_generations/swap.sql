-- Exchanging a rebuilt set of tables with the live one, in two halves of one transaction. In between, its caller
-- replays what was recorded since he last looked, which cannot be much.

-- Keeps everybody from the tables and then from the log. Tables first: whoever writes a read model in his append
-- holds its rows already when he asks for the fence, and would wait for us while we wait for him.
-- Appends stand still from the first of these locks on, so that each wait and each pause of the caller is bounded by
-- the server itself: a caller who is stopped here loses his transaction and not everybody's time.
create function ledger.begin_swap(tables text[]) returns void language plpgsql volatile
security definer set search_path = pg_catalog, pg_temp as $$
declare
  name text;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'read committed only: an older snapshot would hide events' using errcode = 'SP006', detail = '{}';
  end if;
  perform set_config('lock_timeout', '50ms', true), set_config('statement_timeout', '200ms', true),
          set_config('idle_in_transaction_session_timeout', '200ms', true);
  foreach name in array tables loop
    execute format('lock table read.%I, idle.%I in access exclusive mode', name, name);
  end loop;
  perform pg_advisory_xact_lock(21328, 1);
end $$;

-- Table, indexes and rights go together, under the same names.
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

-- Makes this session the leader under a name until it ends, if nobody leads. Leading saves work; what makes two
-- leaders harmless is the compare-and-set of their checkpoints. A class of locks apart from the fence's.
create function ledger.lead(name text) returns boolean language sql volatile
security definer set search_path = pg_catalog, pg_temp as $$
  select pg_try_advisory_lock(21329, hashtext(name))
$$;
