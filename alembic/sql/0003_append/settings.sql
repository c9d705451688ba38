-- A part of `append` and of `append_many`: what every name and the leaf depend on, and what counts at commit.
-- A SET clause would restore all of it at the end of the call: too early for synchronous_commit. The application's
-- role brings the right path along, so that for it nothing has to be set, which would be a tenth of the call.
-- A caller with another path could mislead this one test only with objects of his own, and may make none.

if pg_catalog.current_setting('search_path') operator(pg_catalog.<>) 'pg_catalog, pg_temp'
   or pg_catalog.current_setting('synchronous_commit') operator(pg_catalog.<>) 'on'
   or pg_catalog.pg_client_encoding() operator(pg_catalog.<>) 'UTF8' then
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
          pg_catalog.set_config('synchronous_commit', 'on', true);
  if pg_client_encoding() <> 'UTF8' then
    raise exception 'the leaf is made of UTF-8' using errcode = 'SP006', detail = '{}';
  end if;
end if;
