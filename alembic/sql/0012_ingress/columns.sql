alter table read.node add column public_addresses jsonb not null default '[]';
alter table idle.node add column public_addresses jsonb not null default '[]';
