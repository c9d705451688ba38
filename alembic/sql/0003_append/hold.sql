-- A part of `append` and of `append_many`: everything of one command that can refuse, and the locks that it takes.
-- Order: key, heads (by stream), claims (by kind and value), the same for everybody, so that two appends never wait
-- for each other in a ring.

if key is not null then
  declare
    answer constant text := ledger.hold_key(key);
  begin
    if answer is not null then
      raise exception 'the key was answered before'
        using errcode = 'SP005', detail = jsonb_build_object('answer', answer);
    end if;
  end;
end if;

for i in 0 .. jsonb_array_length(events) - 1 loop
  e := jsonb_populate_record(null::ledger.event, events -> coalesce((lock_order ->> i)::integer, i));
  if i > 0 and e.stream_id < stream then
    raise exception 'streams must ascend' using errcode = 'SP006', detail = '{}';
  end if;
  stream := e.stream_id;
  -- part: head
  if not found then
    raise exception 'the stream has moved on' using errcode = 'SP001', detail = jsonb_build_object(
      'stream', e.stream_id, 'expected', e.version - 1,
      'actual', coalesce((select h.version from ledger.head h where h.stream_id = e.stream_id), 0));
  end if;
end loop;

-- Takes and releases in one loop, in one order: releases first would let two moves wait for each other.
if claims is not null then
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
