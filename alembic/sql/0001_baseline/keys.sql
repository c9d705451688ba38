-- Idempotency keys of commands.

-- Takes a key for this transaction, or returns its stored response. Waits for a concurrent transaction with the same key.
-- A command calls this function twice: `take_key` before the command decides, and `append` in the same transaction. The row has no
-- response until `append` has recorded the events: its only update stores the response with their positions.
create function ledger.hold_key(wanted jsonb) returns text language plpgsql volatile as $$
declare
  hash  constant bytea := decode(wanted ->> 'body_hash', 'hex');
  known record;
begin
  insert into ledger.command_key (principal, route, key, body_hash, taken_at)
  values (wanted ->> 'principal', wanted ->> 'route', wanted ->> 'key', hash, clock_timestamp())
  on conflict do nothing;
  if found then
    return null;
  end if;
  -- A row without a response is this transaction's own, or its command had none: in both cases the key can be taken.
  select k.body_hash, k.answer into strict known from ledger.command_key k
   where k.principal = wanted ->> 'principal' and k.route = wanted ->> 'route' and k.key = wanted ->> 'key'
     for update;
  if known.body_hash <> hash then
    raise exception 'the idempotency key was used with another request body; use a new key' using errcode = 'SP004', detail = '{}';
  end if;
  return known.answer;
end $$;

create function ledger.take_key(wanted jsonb) returns text language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s' as $$
begin
  return ledger.hold_key(wanted);
end $$;

-- Takes those of several keys ([{principal, route, key, body_hash}]) that no request has used, for several commands of one
-- transaction, and returns their indexes. It returns the first index of a key that is listed twice. The other keys are not
-- compared: their commands run in transactions of their own, where `take_key` returns the stored response. It waits only briefly
-- for a concurrent transaction with one of the keys, because all commands of the transaction wait.
create function ledger.take_new_keys(wanted jsonb) returns integer[] language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '500ms' as $$
declare
  indexes integer[];
begin
  with given as (
    select w ->> 'principal' as principal, w ->> 'route' as route, w ->> 'key' as key,
           decode(w ->> 'body_hash', 'hex') as body_hash, (n - 1)::integer as index
      from jsonb_array_elements(wanted) with ordinality e (w, n)),
  taken as (
    insert into ledger.command_key (principal, route, key, body_hash, taken_at)
    select g.principal, g.route, g.key, g.body_hash, clock_timestamp() from given g
     order by g.principal, g.route, g.key, g.index
    on conflict do nothing returning principal, route, key),
  first as (
    select min(g.index) as index from given g join taken t using (principal, route, key)
     group by principal, route, key)
  select coalesce(array_agg(first.index order by first.index), '{}') into indexes from first;
  return indexes;
end $$;

-- Frees those of several keys that have no stored response, before the transaction that took them commits: their commands run
-- again in transactions of their own. No committed row is without a response, so this removes nothing else.
create function ledger.free_keys(unused jsonb) returns void language sql volatile security definer
set search_path = pg_catalog, pg_temp as $$
  delete from ledger.command_key k using jsonb_array_elements(unused) u
   where k.principal = u ->> 'principal' and k.route = u ->> 'route' and k.key = u ->> 'key' and k.answer is null;
$$;
