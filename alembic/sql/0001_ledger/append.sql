-- The only way into the ledger.
--
-- Order: key, heads (by stream), claims (by kind and value), fence, positions, events. All that can refuse comes
-- before the fence, so that a refused command burns no position and no reader waits for it. Everybody takes
-- locks in that one order, so that two appends never wait for each other in a ring.
-- The caller's transaction owns it all; rolled back, nothing happened but a gap where positions were drawn.
--
-- p = { changes:    [{stream_id, version (as expected), facts: [{event_id, type, schema_version, data}]}],
--       lock_order: [index into changes, so that their streams ascend],
--       claims?:    [{kind, value, frees?, takes?}],     ascending; the streams that hold it before and after
--       cause:      {actor, why, project?, correlation_id, causation_id?, trace_context?, observed_at},
--       key?:       {principal, route, key, body_hash (hex), answer?} }
-- Changes, facts and cause name the columns of ledger.event; positions are drawn in the order of `changes`.
--
-- Refusals, with a JSON object as DETAIL:
--   SP001 version conflict {stream, expected, actual}     SP004 key used with another body  {}
--   SP002 claim held       {kind, value, stream}          SP005 key answered before         {answer}
--   SP003 claim not held   {kind, value, stream}          SP006 a call that cannot be right {}
--
-- The leaf of an event is sha256(0x00 || encoding) (RFC 6962 section 2.1). The encoding is the byte 1 (its version),
-- the byte 1 (an event; 2 is a dead position) and the row with its leaf still null, as PostgreSQL sends a
-- composite value: 4 bytes number of columns, then for each in order 4 bytes type OID, 4 bytes length (-1 for null) and
-- that many bytes: big-endian integers, 16 bytes of a uuid, UTF-8 of a text, for a time microseconds since
-- 2000-01-01 UTC. Each field says its length, so that two different rows never encode alike. One call in C makes it;
-- SQL expressions for the same cost four times as much. events/merkle.py says it in Python; golden bytes hold both.
--
-- Few expressions, each doing much: PL/pgSQL prepares every one of them anew in every transaction.

-- Takes a key for this transaction, or returns its answer. A twin in flight is waited for.
create function ledger.hold_key(wanted jsonb) returns text language plpgsql volatile as $$
declare
  known record;
begin
  insert into ledger.command_key (principal, route, key, body_hash, taken_at)
  values (wanted ->> 'principal', wanted ->> 'route', wanted ->> 'key',
          decode(wanted ->> 'body_hash', 'hex'), clock_timestamp())
  on conflict do nothing;
  if found then
    return null;
  end if;
  select k.body_hash, k.answer into strict known from ledger.command_key k
   where k.principal = wanted ->> 'principal' and k.route = wanted ->> 'route' and k.key = wanted ->> 'key'
     for update;
  if known.body_hash <> decode(wanted ->> 'body_hash', 'hex') then
    raise exception 'the key was used with another body' using errcode = 'SP004', detail = '{}';
  end if;
  return known.answer;
end $$;

create function ledger.take_key(wanted jsonb) returns text language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s' as $$
begin
  return ledger.hold_key(wanted);
end $$;

create function ledger.append(p jsonb, out positions bigint[], out recorded_at timestamptz, out epoch integer)
language plpgsql volatile security definer as $$
declare
  changes  constant jsonb := p -> 'changes';
  claims   jsonb;
  change   jsonb;
  claim    jsonb;
  facts    jsonb;
  stream   text collate "C";
  expected bigint;
  e        ledger.event;
begin
  -- Pinned for the rest of the transaction. A SET clause would restore both at the end of the call: too early for
  -- synchronous_commit, which counts at commit, and a tenth of the call's time for search_path. A caller with
  -- another path could mislead this one test only with objects of his own, and may make none.
  if pg_catalog.current_setting('search_path') operator(pg_catalog.<>) 'pg_catalog, pg_temp'
     or pg_catalog.current_setting('synchronous_commit') operator(pg_catalog.<>) 'on'
     or pg_catalog.pg_client_encoding() operator(pg_catalog.<>) 'UTF8' then
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
            pg_catalog.set_config('synchronous_commit', 'on', true);
    if pg_client_encoding() <> 'UTF8' then
      raise exception 'the leaf is made of UTF-8' using errcode = 'SP006', detail = '{}';
    end if;
  end if;

  if p ? 'key' then
    declare
      answer constant text := ledger.hold_key(p -> 'key');
    begin
      if answer is not null then
        raise exception 'the key was answered before'
          using errcode = 'SP005', detail = jsonb_build_object('answer', answer);
      end if;
    end;
  end if;

  for i in 0 .. jsonb_array_length(changes) - 1 loop
    change := changes -> (p -> 'lock_order' ->> i)::integer;
    stream := change ->> 'stream_id';
    expected := change ->> 'version';
    if i > 0 and stream <= changes -> (p -> 'lock_order' ->> (i - 1))::integer ->> 'stream_id' then
      raise exception 'streams must ascend' using errcode = 'SP006', detail = '{}';
    end if;
    if expected = 0 then
      insert into ledger.head values (stream, jsonb_array_length(change -> 'facts')) on conflict do nothing;
    else
      update ledger.head h set version = expected + jsonb_array_length(change -> 'facts')
       where h.stream_id = stream and h.version = expected;
    end if;
    if not found then
      raise exception 'the stream has moved on' using errcode = 'SP001', detail = jsonb_build_object(
        'stream', stream, 'expected', expected,
        'actual', coalesce((select h.version from ledger.head h where h.stream_id = stream), 0));
    end if;
  end loop;

  -- Takes and releases in one loop, in one order: releases first would let two moves wait for each other.
  if p ? 'claims' then
    claims := p -> 'claims';
    for i in 0 .. jsonb_array_length(claims) - 1 loop
      claim := claims -> i;
      if i > 0 and ((claim ->> 'kind') collate "C", (claim ->> 'value') collate "C")
                   <= (claims -> (i - 1) ->> 'kind', claims -> (i - 1) ->> 'value') then
        raise exception 'claims must ascend' using errcode = 'SP006', detail = '{}';
      end if;
      if not claim ? 'frees' then
        insert into ledger.claim values (claim ->> 'kind', claim ->> 'value', claim ->> 'takes') on conflict do nothing;
      elsif claim ? 'takes' then
        update ledger.claim c set stream_id = claim ->> 'takes'
         where c.kind = claim ->> 'kind' and c.value = claim ->> 'value' and c.stream_id = claim ->> 'frees';
      else
        delete from ledger.claim c
         where c.kind = claim ->> 'kind' and c.value = claim ->> 'value' and c.stream_id = claim ->> 'frees';
      end if;
      if not found then
        raise exception 'the claim is not to be had' using
          errcode = case when claim ? 'frees' then 'SP003' else 'SP002' end,
          detail = jsonb_build_object('kind', claim ->> 'kind', 'value', claim ->> 'value', 'stream',
            coalesce(claim ->> 'frees', (select c.stream_id from ledger.claim c
                                          where c.kind = claim ->> 'kind' and c.value = claim ->> 'value')));
      end if;
    end loop;
  end if;

  -- Shared: appenders never wait for one another. Held to commit: a reader who sees no holder sees every event.
  -- Taken after the last check that can refuse: a refused command must draw no position, or every reader
  -- would wait for a gap that nobody will ever fill. (An IF, because PERFORM would cost an executor run.)
  if jsonb_array_length(changes) > 0 and pg_advisory_xact_lock_shared(21328, 1) is null then
  end if;
  -- Read under the fence: no later holder can record an earlier time than a reader has seen to be final.
  recorded_at := clock_timestamp();
  for i in 0 .. jsonb_array_length(changes) - 1 loop
    change := changes -> i;
    facts := change -> 'facts';
    for j in 0 .. jsonb_array_length(facts) - 1 loop
      e := jsonb_populate_record(null::ledger.event, (p -> 'cause') || (facts -> j) || change || '{"leaf": null}');
      e.position := nextval('ledger.position_seq');
      e.version := e.version + j + 1;
      e.recorded_at := recorded_at;
      -- After nextval: its lock makes the session notice that an epoch began while it waited for the fence.
      e.epoch := ledger.current_epoch();
      e.leaf := sha256('\x000101'::bytea || record_send(e));
      insert into ledger.event values (e.*);
      positions := positions || e.position;
    end loop;
  end loop;
  epoch := e.epoch;

  if p ? 'key' then
    update ledger.command_key k
       set answer = p -> 'key' ->> 'answer', first_position = positions[1],
           last_position = positions[array_upper(positions, 1)]
     where k.principal = p -> 'key' ->> 'principal' and k.route = p -> 'key' ->> 'route' and k.key = p -> 'key' ->> 'key';
  end if;
end $$;
