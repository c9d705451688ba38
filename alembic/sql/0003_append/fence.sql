-- Shared: appenders never wait for one another. Held to commit: a reader who sees no holder sees every event.
-- Taken after the last check that can refuse: a refused command must draw no position, or every reader
-- would wait for a gap that nobody will ever fill.
-- The time is read under the fence: no later holder can record an earlier one than a reader has seen to be final.
recorded_at := case when pg_advisory_xact_lock_shared(21328, 1) is not null then clock_timestamp() end;
