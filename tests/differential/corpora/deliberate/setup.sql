create extension ltree;
create type mood as enum ('it''s', 'fine');
create table kept_exact (
  id int primary key,
  m mood not null default 'it''s',
  ts timestamp not null default 'infinity',
  tm time not null default '24:00:00',
  paths ltree[],
  times time[]);
comment on column kept_exact.id is 'The number.';
create table searches (q tsquery primary key, n int);
