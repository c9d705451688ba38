-- A part of `write`, `append` and `append_many`: the event `e`, whose checks all passed, under the fence.
e.position := nextval('ledger.position_seq');
e.recorded_at := recorded_at;
-- After nextval: its lock makes the session notice that an epoch began while it waited for the fence.
e.epoch := ledger.current_epoch();
e.leaf := null;
e.leaf := sha256('\x000101'::bytea || record_send(e));
insert into ledger.event values (e.*);
positions := positions || e.position;
