-- Idempotency keys of commands.

-- Takes a key for this transaction, or returns its stored response. Waits for a concurrent transaction with the same key.
-- A command calls this function twice: `take_key` takes the key without a response, before the command decides; `append` takes
-- it again in the same transaction, with the response.
create function ledger.hold_key(wanted jsonb) returns text language plpgsql volatile as $$
declare
  hash  constant bytea := decode(wanted ->> 'body_hash', 'hex');
  known record;
begin
  insert into ledger.command_key (principal, route, key, body_hash, answer, taken_at)
  values (wanted ->> 'principal', wanted ->> 'route', wanted ->> 'key', hash, wanted ->> 'answer', clock_timestamp())
  on conflict do nothing;
  if found then
    return null;
  end if;
  update ledger.command_key k set answer = wanted ->> 'answer'
   where k.principal = wanted ->> 'principal' and k.route = wanted ->> 'route' and k.key = wanted ->> 'key'
     and k.body_hash = hash and k.answer is null;
  if found then
    return null;
  end if;
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
