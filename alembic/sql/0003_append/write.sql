-- A part of `append` and of `append_many`: the events of one command whose checks all passed, under the fence.

for i in 0 .. jsonb_array_length(events) - 1 loop
  e := jsonb_populate_record(null::ledger.event, events -> i);
  -- part: insert
end loop;

if key is not null then
  update ledger.command_key k
     set first_position = positions[cardinality(positions) - jsonb_array_length(events) + 1],
         last_position = case when jsonb_array_length(events) > 0 then e.position end
   where k.principal = key ->> 'principal' and k.route = key ->> 'route' and k.key = key ->> 'key';
end if;
