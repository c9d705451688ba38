alter table read.node add column drift jsonb, add column blocked boolean not null default false;
alter table idle.node add column drift jsonb, add column blocked boolean not null default false;
alter table read.slot add column drift jsonb, add column blocked boolean not null default false;
alter table idle.slot add column drift jsonb, add column blocked boolean not null default false;

-- Few have any, and some ask for all of them.
create index node_drifting on read.node (node_id) where drift is not null;
create index node_drifting on idle.node (node_id) where drift is not null;
create index slot_drifting on read.slot (node_id, slot_index) where drift is not null;
create index slot_drifting on idle.slot (node_id, slot_index) where drift is not null;

-- What is placed on is looked for here.
drop index read.slot_free;
drop index idle.slot_free;
create index slot_free on read.slot (sku, node_id, slot_index) where state = 'free' and not blocked;
create index slot_free on idle.slot (sku, node_id, slot_index) where state = 'free' and not blocked;
