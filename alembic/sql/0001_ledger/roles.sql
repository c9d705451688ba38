-- Who may do what. The owner owns every object and cannot log in; the application logs in and owns nothing.
-- Roles belong to the server, not to the database: they may be here already, with a password of their own.

do $$
begin
  if not exists (select from pg_roles where rolname = 'sliceplane_owner') then
    create role sliceplane_owner nologin;
  end if;
  if not exists (select from pg_roles where rolname = 'sliceplane_app') then
    create role sliceplane_app login;
  end if;
end $$;

-- An appender that stops or vanishes holds readers back for as long as its transaction lives: these bound it
-- (promise P29). A lock waited for longer is a caller's answer "busy", not a queue without end.
alter role sliceplane_app set idle_in_transaction_session_timeout = '4s';
alter role sliceplane_app set lock_timeout = '5s';
alter role sliceplane_app set tcp_user_timeout = '5s';
alter role sliceplane_app set tcp_keepalives_idle = '5';
alter role sliceplane_app set tcp_keepalives_interval = '2';
alter role sliceplane_app set tcp_keepalives_count = '2';
-- A snapshot older than the fence would hide committed events from readers.
alter role sliceplane_app set default_transaction_isolation = 'read committed';

do $$
begin
  execute format('revoke all on database %I from public', current_database());
  execute format('grant connect on database %I to sliceplane_app', current_database());
end $$;
revoke all on schema public from public;

create schema if not exists ledger;  -- Alembic's own table may have come first
alter schema ledger owner to sliceplane_owner;
create schema read authorization sliceplane_owner;
create schema work authorization sliceplane_owner;
grant usage on schema ledger, read, work to sliceplane_app;

-- Whoever runs a later migration: tables in `read` and `work` are the application's to fill.
alter default privileges in schema read, work grant select, insert, update, delete on tables to sliceplane_app;
alter default privileges in schema read, work grant usage, select on sequences to sliceplane_app;
alter default privileges for role sliceplane_owner in schema read, work
  grant select, insert, update, delete on tables to sliceplane_app;
alter default privileges for role sliceplane_owner in schema read, work
  grant usage, select on sequences to sliceplane_app;

-- The fence is an advisory lock. Nobody but the owner's functions may take one: a stranger holding it would
-- stop every reader (promise P14).
do $$
declare
  lock regprocedure;
begin
  for lock in
    select p.oid from pg_proc p
     where p.pronamespace = 'pg_catalog'::regnamespace and p.proname ~ '^pg_(try_)?advisory_'
  loop
    execute format('revoke execute on function %s from public', lock);
    execute format('grant execute on function %s to sliceplane_owner', lock);
  end loop;
end $$;
