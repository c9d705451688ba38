-- A part of `append` and of `append_many`: the events of one command whose checks all passed, under the fence.
-- An event alone still stands in `e` from its check.

for i in 0 .. jsonb_array_length(events) - 1 loop
  if lock_order is not null then
    e := jsonb_populate_record(null::ledger.event, events -> i);
  end if;
  e.position := nextval('ledger.position_seq');
  e.recorded_at := recorded_at;
  -- After nextval: its lock makes the session notice that an epoch began while it waited for the fence.
  e.epoch := ledger.current_epoch();
  e.leaf := null;
  e.leaf := sha256('\x000101'::bytea || record_send(e));
  insert into ledger.event values (e.*);
  positions := positions || e.position;
end loop;

if key is not null then
  update ledger.command_key k
     set first_position = positions[cardinality(positions) - jsonb_array_length(events) + 1],
         last_position = case when jsonb_array_length(events) > 0 then e.position end
   where k.principal = key ->> 'principal' and k.route = key ->> 'route' and k.key = key ->> 'key';
end if;
