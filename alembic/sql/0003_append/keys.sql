-- Takes a key for this transaction, or returns its answer. A twin in flight is waited for. The answer stands there
-- at once, and not only when the events do: a twin later in the same batch must find it.
create or replace function ledger.hold_key(wanted jsonb) returns text language plpgsql volatile as $$
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
    raise exception 'the key was used with another body' using errcode = 'SP004', detail = '{}';
  end if;
  return known.answer;
end $$;
