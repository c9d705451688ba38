-- A part of `hold`, `append` and `append_many`: moves the head of the stream of `e` on. Where that is not `found`, the
-- stream is not where the command expects it.
if e.version = 1 then
  insert into ledger.head values (e.stream_id, 1) on conflict do nothing;
else
  update ledger.head h set version = e.version where h.stream_id = e.stream_id and h.version = e.version - 1;
end if;
