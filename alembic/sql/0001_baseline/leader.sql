-- The leader of the programs of one kind.

-- Makes this session the leader under a name until it ends, unless another session leads. A single leader only saves work;
-- two leaders are harmless because their checkpoints are compare-and-set. The lock class differs from that of the fence.
create function ledger.lead(name text) returns boolean language sql volatile
security definer set search_path = pg_catalog, pg_temp as $$
  select pg_try_advisory_lock(21329, hashtext(name))
$$;
