-- Nodes are known by a key pair of their own and by short sessions, where they had lasting secrets before. Whoever
-- enrolled with those enrols again.
alter table read.node
  drop column credential_sha256,
  drop column queue_password_sha256,
  add column public_key text,
  add column key_thumbprint text,
  add column superseded_session bigint,
  add column superseded_at timestamptz,
  add column revoked text;
alter table idle.node
  drop column credential_sha256,
  drop column queue_password_sha256,
  add column public_key text,
  add column key_thumbprint text,
  add column superseded_session bigint,
  add column superseded_at timestamptz,
  add column revoked text;

-- The newest session of each node, and what of it the queues' server was told (`queue_number`; null for nothing).
create table work.node_session (
  node_id text not null,
  number bigint not null,
  key_thumbprint text not null,
  credential_sha256 text not null,
  queue_password_sha256 text not null,
  prior_queue_password_sha256 text,
  expires_at timestamptz not null,
  queue_number bigint,
  primary key (node_id)
);
-- What was refused before, so that it is recorded once and counted from then on.
create table work.refusal (
  node_id text not null,
  about text not null,
  code text not null,
  first_at timestamptz not null,
  last_at timestamptz not null,
  times integer not null,
  primary key (node_id, about, code)
);
