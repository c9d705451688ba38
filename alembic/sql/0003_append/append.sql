-- The only two ways into the ledger: one command, or many that do not know of each other.
--
-- All that can refuse comes before the fence, so that a refused command burns no position and no reader waits for it.
-- The caller's transaction owns it all; rolled back, nothing happened but a gap where positions were drawn.
--
-- events:     [{a column of ledger.event: its value}], in the order in which positions are drawn; their versions rise
--             by one in each stream. What they say of position, recorded_at, epoch and leaf is not believed.
-- lock_order: [index into events], so that (stream_id, version) ascends; null for an event alone
-- claims:     [{kind, value, frees?, takes?}], ascending; the streams that hold it before and after; null for none
-- key:        {principal, route, key, body_hash (hex), answer?}; null for none
--
-- Refusals, with a JSON object as DETAIL:
--   SP001 version conflict {stream, expected, actual}     SP004 key used with another body  {}
--   SP002 claim held       {kind, value, stream}          SP005 key answered before         {answer}
--   SP003 claim not held   {kind, value, stream}          SP006 a call that cannot be right {}
--
-- The leaf is what it was in 0001_ledger: sha256(0x00 || 1 || 1 || the row, its leaf null, as record_send writes it).
--
-- Few expressions, each doing much: PL/pgSQL prepares every one of them anew in every transaction, and that is most
-- of what a call costs. The parts are put in where they are named, because a call of each would cost a tenth.
--
-- An event alone, without claims and key, has one check, which is one statement, and so a short road in both
-- functions. Where it does not pass, nothing was changed: the long road checks again, and tells why.

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
  -- part: settings
  if jsonb_array_length(events) = 1 and claims is null and key is null then
    e := jsonb_populate_record(null::ledger.event, events -> 0);
    -- part: head
    if found then
      -- part: fence
      -- part: insert
      epoch := e.epoch;
      return;
    end if;
  end if;
  -- part: hold
  -- part: fence
  -- part: write
  epoch := e.epoch;
end $$;

-- Many commands in one transaction, each {events, lock_order?, claims?, key?} with the meaning above. The result is
-- that of the same commands appended one after the other, where a refused one leaves nothing and harms no other:
-- each sees what those before it did, and what takes more than one check is a subtransaction, which a refusal undoes.
-- `refused` says of each of those, by its index, {state, message, detail}; `positions` are those of all others'
-- events, in order.
--
-- Locks are taken command by command, so two batches may wait for each other in a ring; the server then ends one of
-- them (40P01), nothing of which is stored, and its caller begins it again.
create function ledger.append_many(
  commands jsonb,
  out positions bigint[], out recorded_at timestamptz, out epoch integer, out refused jsonb)
language plpgsql volatile security definer as $$
#variable_conflict use_variable
declare
  command    jsonb;
  events     jsonb;
  lock_order jsonb;
  claims     jsonb;
  key        jsonb;
  stream     text collate "C";
  claim      jsonb;
  e          ledger.event;
  held       jsonb[];         -- in order; null for an event alone,
  alone      ledger.event[];  -- which stands here, at the same index
  why        text;
  about      text;
begin
  -- part: settings
  refused := '{}';
  for number in 0 .. jsonb_array_length(commands) - 1 loop
    command := commands -> number;
    events := command -> 'events';
    lock_order := command -> 'lock_order';
    claims := command -> 'claims';
    key := command -> 'key';
    if jsonb_array_length(events) = 1 and claims is null and key is null then
      e := jsonb_populate_record(null::ledger.event, events -> 0);
      -- part: head
      if found then
        held := held || null::jsonb;
        alone[cardinality(held)] := e;
        continue;
      end if;
    end if;
    begin
      -- part: hold
      held := held || command;
    exception when sqlstate 'SP001' or sqlstate 'SP002' or sqlstate 'SP003' or sqlstate 'SP004' or sqlstate 'SP005'
                or sqlstate 'SP006' then
      get stacked diagnostics why = message_text, about = pg_exception_detail;
      refused := refused || jsonb_build_object(number::text, jsonb_build_object(
        'state', sqlstate, 'message', why, 'detail', about));
    end;
  end loop;

  if held is null then
    return;
  end if;
  -- part: fence
  for number in 1 .. cardinality(held) loop
    if held[number] is null then
      e := alone[number];
      -- part: insert
    else
      events := held[number] -> 'events';
      key := held[number] -> 'key';
      -- part: write
    end if;
  end loop;
  epoch := e.epoch;
end $$;
