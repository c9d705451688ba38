-- Keys of projects, with which the personal data in events is encrypted (docs/decisions/0051). They are outside the ledger, its export and
-- the digests of heads. `secret` is encrypted with a key that is not in the database; it is null once the key was destroyed.
create table keys.project_key (
  key_id       text collate "C" not null primary key,
  project      text collate "C" not null,
  secret       bytea,
  created_at   timestamptz not null,
  destroyed_at timestamptz
);
create unique index project_key_in_use on keys.project_key (project) where secret is not null;
create index project_key_by_age on keys.project_key (created_at) where secret is not null;

-- Refuses unless all these keys exist and were not destroyed: the caller has cached them, and must read them again. The project's row,
-- which a request and an erasure lock, keeps a key from being destroyed between this check and the end of the transaction.
-- One statement for each key: PostgreSQL makes a new plan of a statement with `= any(wanted)` in each call, which takes a sixth of
-- the time of an append.
create function keys.refuse_destroyed(wanted text[]) returns boolean language plpgsql stable
set search_path = pg_catalog, pg_temp as $$
declare
  each text collate "C";
begin
  foreach each in array wanted loop
    perform from keys.project_key k where k.key_id = each and k.secret is not null;
    if not found then
      raise exception 'a key of a project was destroyed' using errcode = 'SP008', detail = '{}';
    end if;
  end loop;
  return true;
end $$;
revoke all on function keys.refuse_destroyed from public;
grant execute on function keys.refuse_destroyed to sliceplane_app;
