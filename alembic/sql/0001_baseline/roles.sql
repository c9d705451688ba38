-- Roles of the server, and what each may do on this database. The owner owns every object and cannot log in; the application
-- and the sealer log in and own nothing. Roles belong to the server, not to the database: they may exist already, with a password of their own.

do $$
begin
  if not exists (select from pg_roles where rolname = 'sliceplane_owner') then
    create role sliceplane_owner nologin;
  end if;
  if not exists (select from pg_roles where rolname = 'sliceplane_app') then
    create role sliceplane_app login;
  end if;
  if not exists (select from pg_roles where rolname = 'sliceplane_sealer') then
    create role sliceplane_sealer login;
  end if;
end $$;

-- A stopped or disconnected appender delays readers for as long as its transaction lives; these settings limit that
-- (promise P29). A caller that waits longer for a lock gets the error "busy" instead of an unlimited wait.
alter role sliceplane_app set idle_in_transaction_session_timeout = '4s';
alter role sliceplane_app set lock_timeout = '5s';
alter role sliceplane_app set tcp_user_timeout = '5s';
alter role sliceplane_app set tcp_keepalives_idle = '5';
alter role sliceplane_app set tcp_keepalives_interval = '2';
alter role sliceplane_app set tcp_keepalives_count = '2';
-- A snapshot older than the fence would hide committed events from readers.
alter role sliceplane_app set default_transaction_isolation = 'read committed';
-- The search path that `ledger.append` would otherwise have to set in every transaction.
alter role sliceplane_app set search_path = pg_catalog, pg_temp;

-- A stopped sealer delays no other program; these settings only end its session.
alter role sliceplane_sealer set idle_in_transaction_session_timeout = '4s';
alter role sliceplane_sealer set lock_timeout = '5s';
alter role sliceplane_sealer set tcp_user_timeout = '5s';
alter role sliceplane_sealer set default_transaction_isolation = 'read committed';
alter role sliceplane_sealer set search_path = pg_catalog, pg_temp;

do $$
begin
  execute format('revoke all on database %I from public', current_database());
  execute format('grant connect on database %I to sliceplane_app, sliceplane_sealer', current_database());
end $$;
revoke all on schema public from public;

-- The fence is an advisory lock. Only the owner's functions may take advisory locks: any other holder would stop every
-- reader (promise P14).
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
