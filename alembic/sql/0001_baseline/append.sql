-- The functions that write events to the ledger: `append` for one command, `append_one` for a command with a single event and
-- nothing else, and `append_many` for commands that share a transaction.
--
-- Order: key, heads (by stream), claims (by kind and value), fence, positions, events. Every check that can refuse comes before
-- the fence, so that a refused command consumes no position and no reader waits for it. `append` takes locks in this one
-- order, so that two calls of it never deadlock; `append_many` takes them in another order, which its comment states.
-- Everything belongs to the caller's transaction; a rollback leaves only a gap where positions were drawn.
--
-- events:     [{a column of ledger.event: its value}], in the order in which positions are drawn; their versions ascend
--             by one in each stream. Their values of position, recorded_at, epoch and leaf are ignored.
-- lock_order: [index into events], so that (stream_id, version) ascends; null for a single event
-- claims:     [{kind, value, frees?, takes?}], ascending; `frees` is the stream that holds the claim and gives it up, `takes` the one
--             that holds it afterwards; null for none
-- key:        {principal, route, key, body_hash (hex), answer?}; null for none
--
-- Refusals, with a JSON object as DETAIL:
--   SP001 version conflict {stream, expected, actual}     SP004 key used with another body {}
--   SP002 claim held       {kind, value, stream}          SP005 key has a stored response  {answer}
--   SP003 claim not held   {kind, value, stream}          SP006 invalid call               {}
--
-- The leaf of an event is sha256(0x00 || encoding) (RFC 6962 section 2.1). The encoding is the byte 1 (its version),
-- the byte 1 (an event; 2 is a dead position) and the row with its leaf still null, as PostgreSQL sends a
-- composite value: the number of columns in 4 bytes, then for each in order the type OID in 4 bytes, the length in 4 bytes
-- (-1 for null) and that many bytes: big-endian integers, the 16 bytes of a uuid, the UTF-8 of a text, for a time the
-- microseconds since 2000-01-01 UTC. Each field includes its length, so that two different rows never have the same encoding.
-- One call in C makes it; SQL expressions for the same result take four times as long. events/ledger/merkle.py does the same in
-- Python; golden bytes verify both.
--
-- There are few expressions, each doing much: PL/pgSQL prepares every expression again in every transaction, and that is most of
-- the cost of a call. For the same reason the function contains some statements twice: a function call for them would take a tenth.

create function ledger.append(
  events jsonb, lock_order jsonb default null, claims jsonb default null, key jsonb default null,
  out positions bigint[], out recorded_at timestamptz, out epoch integer)
language plpgsql volatile security definer as $$
#variable_conflict use_variable
declare
  stream text collate "C";
  claim  jsonb;
  e      ledger.event;
begin
  -- The settings on which name resolution, the leaf and durability depend. A SET clause would restore them at the end of the
  -- call: too early for synchronous_commit, which counts at commit. The application's role already has this search path, so that
  -- nothing has to be set for it, which would take a tenth of the call.
  -- A caller with another path could mislead this one test only with objects of its own, and has no permission to create any.
  if pg_catalog.current_setting('search_path') operator(pg_catalog.<>) 'pg_catalog, pg_temp'
     or pg_catalog.current_setting('synchronous_commit') operator(pg_catalog.<>) 'on'
     or pg_catalog.pg_client_encoding() operator(pg_catalog.<>) 'UTF8' then
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
            pg_catalog.set_config('synchronous_commit', 'on', true);
    if pg_client_encoding() <> 'UTF8' then
      raise exception 'the client encoding must be UTF8, from which Merkle leaves are computed' using errcode = 'SP006', detail = '{}';
    end if;
  end if;

  if key is not null then
    declare
      answer constant text := ledger.hold_key(key);
    begin
      if answer is not null then
        raise exception 'a request with this idempotency key already has a stored response'
          using errcode = 'SP005', detail = jsonb_build_object('answer', answer);
      end if;
    end;
  end if;

  for i in 0 .. jsonb_array_length(events) - 1 loop
    e := jsonb_populate_record(null::ledger.event, events -> coalesce((lock_order ->> i)::integer, i));
    if i > 0 and e.stream_id < stream then
      raise exception 'lock_order must list streams in ascending order' using errcode = 'SP006', detail = '{}';
    end if;
    stream := e.stream_id;
    if e.version = 1 then
      insert into ledger.head values (e.stream_id, 1) on conflict do nothing;
    else
      update ledger.head h set version = e.version where h.stream_id = e.stream_id and h.version = e.version - 1;
    end if;
    if not found then
      raise exception 'the stream is not at the expected version' using errcode = 'SP001', detail = jsonb_build_object(
        'stream', e.stream_id, 'expected', e.version - 1,
        'actual', coalesce((select h.version from ledger.head h where h.stream_id = e.stream_id), 0));
    end if;
  end loop;

  -- Takes and releases are in one loop, in one order: with the releases first, two moves could deadlock.
  if claims is not null then
    for i in 0 .. jsonb_array_length(claims) - 1 loop
      claim := claims -> i;
      if i > 0 and ((claim ->> 'kind') collate "C", (claim ->> 'value') collate "C")
                   <= (claims -> (i - 1) ->> 'kind', claims -> (i - 1) ->> 'value') then
        raise exception 'claims must be in ascending order of kind and value' using errcode = 'SP006', detail = '{}';
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
        raise exception 'the claim is held by another stream, or not held by the stream that frees it' using
          errcode = case when claim ? 'frees' then 'SP003' else 'SP002' end,
          detail = jsonb_build_object('kind', claim ->> 'kind', 'value', claim ->> 'value', 'stream',
            coalesce(claim ->> 'frees', (select c.stream_id from ledger.claim c
                                          where c.kind = claim ->> 'kind' and c.value = claim ->> 'value')));
      end if;
    end loop;
  end if;

  -- The fence is shared, so that appenders never wait for one another, and held until commit: a reader that sees no holder sees
  -- every event. It is taken after the last check that can refuse: a refused command must draw no position, or every reader
  -- would wait for a gap that is never filled.
  -- The time is read under the fence: no later holder can record an earlier time than one that a reader already treats as final.
  recorded_at := case when pg_advisory_xact_lock_shared(21328, 1) is not null then clock_timestamp() end;
  for i in 0 .. jsonb_array_length(events) - 1 loop
    e := jsonb_populate_record(null::ledger.event, events -> i);
    e.position := nextval('ledger.position_seq');
    e.recorded_at := recorded_at;
    -- After nextval: its lock makes the session notice an epoch that began while it waited for the fence.
    e.epoch := ledger.current_epoch();
    e.leaf := null;
    e.leaf := sha256('\x000101'::bytea || record_send(e));
    insert into ledger.event values (e.*);
    positions := positions || e.position;
  end loop;

  if key is not null then
    update ledger.command_key k
       set answer = key ->> 'answer', first_position = positions[1], last_position = positions[cardinality(positions)]
     where k.principal = key ->> 'principal' and k.route = key ->> 'route' and k.key = key ->> 'key';
  end if;
  epoch := e.epoch;
end $$;

-- The same for a single event without claims and key. It has a parameter for each column, because PL/pgSQL takes a fifth of the time of
-- `append` to read these from JSON.
create function ledger.append_one(
  event_id uuid, stream_id text, version bigint, type text, schema_version smallint, data text, actor text, reason text,
  correlation_id uuid, observed_at timestamptz, project text, causation_id uuid, trace_context text,
  out "position" bigint, out recorded_at timestamptz, out epoch integer)
language plpgsql volatile security definer as $$
#variable_conflict use_variable
begin
  -- As in `append`, where the comments explain these statements.
  if pg_catalog.current_setting('search_path') operator(pg_catalog.<>) 'pg_catalog, pg_temp'
     or pg_catalog.current_setting('synchronous_commit') operator(pg_catalog.<>) 'on'
     or pg_catalog.pg_client_encoding() operator(pg_catalog.<>) 'UTF8' then
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
            pg_catalog.set_config('synchronous_commit', 'on', true);
    if pg_client_encoding() <> 'UTF8' then
      raise exception 'the client encoding must be UTF8, from which Merkle leaves are computed' using errcode = 'SP006', detail = '{}';
    end if;
  end if;

  if version = 1 then
    insert into ledger.head values (stream_id, 1) on conflict do nothing;
  else
    update ledger.head h set version = version where h.stream_id = stream_id and h.version = version - 1;
  end if;
  if not found then
    raise exception 'the stream is not at the expected version' using errcode = 'SP001', detail = jsonb_build_object(
      'stream', stream_id, 'expected', version - 1,
      'actual', coalesce((select h.version from ledger.head h where h.stream_id = stream_id), 0));
  end if;

  -- In this order: the fence, the position, the time and the epoch.
  position := case when pg_advisory_xact_lock_shared(21328, 1) is not null then nextval('ledger.position_seq') end;
  recorded_at := clock_timestamp();
  epoch := ledger.current_epoch();
  insert into ledger.event values (
    position, event_id, stream_id, version, type, schema_version, project, actor, reason, correlation_id, causation_id, trace_context,
    observed_at, recorded_at, epoch, data, sha256('\x000101'::bytea || record_send(row(
      position, event_id, stream_id, version, type, schema_version, project, actor, reason, correlation_id, causation_id, trace_context,
      observed_at, recorded_at, epoch, data, null)::ledger.event)));
end $$;

-- The same for many events of one transaction, of one or of several commands: one statement for all rows of a table takes a third of
-- the time of `append`. The order of checks, locks and positions is that of `append`, with two exceptions: the heads of new
-- streams come before those of the other streams, and claims without a holder before those that have one. So it can deadlock with
-- another append of the same streams or claims; one of them then runs again.
--
-- events: as in `append`, of all commands; the versions of each stream ascend by one
-- takes:  [{kind, value, takes}], claims that no stream holds; null for none
-- frees:  [{kind, value, frees, takes?}], ascending, claims that a stream holds and gives up; `takes` is the next holder; null for none
-- keys:   [{principal, route, key, body_hash (hex), answer, first, last}], which this transaction has taken; first and last are the
--         numbers of the command's events, from 1; null for none
--
-- Refusals: SP001, SP002, SP003 and SP006, as in `append`. If several commands are refused, one reason is reported.
create function ledger.append_many(
  events jsonb, takes jsonb default null, frees jsonb default null, keys jsonb default null)
returns void language plpgsql volatile security definer
-- A session keeps its plans until the statistics of a table change. A plan made while a table was small would read the whole
-- table for each key, also after the table has grown.
set enable_seqscan = off as $$
#variable_conflict use_variable
declare
  streams     text[];
  firsts      bigint[];
  lasts       bigint[];
  consecutive boolean;
  created     text[];
  number      bigint;
  known       jsonb;
  positions   bigint[];
  recorded_at timestamptz;
  epoch       integer;
begin
  -- As in `append`, where the comments explain these statements.
  if pg_catalog.current_setting('search_path') operator(pg_catalog.<>) 'pg_catalog, pg_temp'
     or pg_catalog.current_setting('synchronous_commit') operator(pg_catalog.<>) 'on'
     or pg_catalog.pg_client_encoding() operator(pg_catalog.<>) 'UTF8' then
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
            pg_catalog.set_config('synchronous_commit', 'on', true);
    if pg_client_encoding() <> 'UTF8' then
      raise exception 'the client encoding must be UTF8, from which Merkle leaves are computed' using errcode = 'SP006', detail = '{}';
    end if;
  end if;

  -- One statement for each key and each head: a plan for many rows that was made while a table was small would read all of it.
  if keys is not null then
    for i in 0 .. jsonb_array_length(keys) - 1 loop
      known := keys -> i;
      perform from ledger.command_key k
        where k.principal = known ->> 'principal' and k.route = known ->> 'route' and k.key = known ->> 'key'
          and k.body_hash = decode(known ->> 'body_hash', 'hex') and k.answer is null;
      if not found then
        raise exception 'the transaction has not taken one of the idempotency keys' using errcode = 'SP006', detail = '{}';
      end if;
    end loop;
  end if;

  select array_agg(s.stream_id order by s.stream_id), array_agg(s.first order by s.stream_id),
         array_agg(s.last order by s.stream_id), bool_and(s.events = s.last - s.first + 1)
    into streams, firsts, lasts, consecutive
    from (select e.stream_id collate "C" as stream_id, min(e.version) as first, max(e.version) as last, count(*) as events
            from jsonb_to_recordset(events) as e (stream_id text, version bigint) group by 1) s;
  if not coalesce(consecutive, jsonb_array_length(events) = 0) then
    raise exception 'the versions of each stream must ascend by one' using errcode = 'SP006', detail = '{}';
  end if;
  with made as (
    insert into ledger.head select s.stream_id, s.last from unnest(streams, firsts, lasts) s (stream_id, first, last)
     where s.first = 1 order by s.stream_id collate "C"
    on conflict do nothing returning stream_id)
  select coalesce(array_agg(made.stream_id), '{}') into created from made;
  for i in 1 .. coalesce(cardinality(streams), 0) loop
    if firsts[i] = 1 then
      continue when streams[i] = any(created);
    else
      update ledger.head h set version = lasts[i] where h.stream_id = streams[i] and h.version = firsts[i] - 1;
      continue when found;
    end if;
    raise exception 'the stream is not at the expected version' using errcode = 'SP001', detail = jsonb_build_object(
      'stream', streams[i], 'expected', firsts[i] - 1,
      'actual', coalesce((select h.version from ledger.head h where h.stream_id = streams[i]), 0));
  end loop;

  if takes is not null then
    insert into ledger.claim
    select c.kind, c.value, c.takes from jsonb_to_recordset(takes) as c (kind text, value text, takes text)
     order by c.kind collate "C", c.value collate "C"
    on conflict do nothing;
    get diagnostics number = row_count;
    if number <> jsonb_array_length(takes) then
      -- Its holder may have freed it since.
      select jsonb_build_object('kind', g.kind, 'value', g.value, 'stream', c.stream_id) into known
        from jsonb_to_recordset(takes) as g (kind text, value text, takes text)
        left join ledger.claim c on c.kind = g.kind and c.value = g.value
       order by c.stream_id is distinct from g.takes desc limit 1;
      raise exception 'the claim is held by another stream' using errcode = 'SP002', detail = known;
    end if;
  end if;
  if frees is not null then
    for i in 0 .. jsonb_array_length(frees) - 1 loop
      known := frees -> i;
      if known ? 'takes' then
        update ledger.claim c set stream_id = known ->> 'takes'
         where c.kind = known ->> 'kind' and c.value = known ->> 'value' and c.stream_id = known ->> 'frees';
      else
        delete from ledger.claim c
         where c.kind = known ->> 'kind' and c.value = known ->> 'value' and c.stream_id = known ->> 'frees';
      end if;
      if not found then
        raise exception 'the claim is not held by the stream that frees it' using errcode = 'SP003', detail = jsonb_build_object(
          'kind', known ->> 'kind', 'value', known ->> 'value', 'stream', known ->> 'frees');
      end if;
    end loop;
  end if;

  recorded_at := case when pg_advisory_xact_lock_shared(21328, 1) is not null then clock_timestamp() end;
  positions := array(select nextval('ledger.position_seq') from generate_series(1, jsonb_array_length(events)));
  epoch := ledger.current_epoch();
  insert into ledger.event
  select e.position, e.event_id, e.stream_id, e.version, e.type, e.schema_version, e.project, e.actor, e.reason,
         e.correlation_id, e.causation_id, e.trace_context, e.observed_at, recorded_at, epoch, e.data,
         sha256('\x000101'::bytea || record_send(row(
           e.position, e.event_id, e.stream_id, e.version, e.type, e.schema_version, e.project, e.actor, e.reason,
           e.correlation_id, e.causation_id, e.trace_context, e.observed_at, recorded_at, epoch, e.data, null)::ledger.event))
    from (select positions[g.place] as position, g.*
            from rows from (jsonb_to_recordset(events) as (
                   event_id uuid, stream_id text, version bigint, type text, schema_version smallint, project text, actor text,
                   reason text, correlation_id uuid, causation_id uuid, trace_context text, observed_at timestamptz, data text))
                 with ordinality as g (event_id, stream_id, version, type, schema_version, project, actor, reason,
                                       correlation_id, causation_id, trace_context, observed_at, data, place)
          offset 0) e;

  if keys is not null then
    for i in 0 .. jsonb_array_length(keys) - 1 loop
      known := keys -> i;
      update ledger.command_key k
         set answer = known ->> 'answer', first_position = positions[(known ->> 'first')::integer],
             last_position = positions[(known ->> 'last')::integer]
       where k.principal = known ->> 'principal' and k.route = known ->> 'route' and k.key = known ->> 'key';
    end loop;
  end if;
end $$;
