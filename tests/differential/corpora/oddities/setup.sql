create table quoted_names (id int primary key, """quoted""" text, "back`tick" text, "a.dot" text);
insert into quoted_names values (1, 'read', 'b', 'c');
create type "mood.of" as enum ('sad', 'fine');
create table dotted_enum (id int primary key, m "mood.of", ms "mood.of"[]);
insert into dotted_enum values (1, 'sad', array['fine']::"mood.of"[]);
create schema aside;
create type aside."state.of" as enum ('on', 'off');
create table dotted_aside (id int primary key, s aside."state.of" not null default 'off', ss aside."state.of"[]);
insert into dotted_aside values (1, 'on', array['off']::aside."state.of"[]);
create table far_dates (id int primary key, d date, ds date[], ts timestamp);
insert into far_dates values
 (1, '0044-03-15 BC', array['0044-03-15 BC']::date[], '0044-03-15 12:00:00 BC'),
 (2, '0001-01-01', array['0001-01-01']::date[], '0001-01-01 00:00:00'),
 (3, '1582-10-04', array['1582-10-04', '1582-10-15']::date[], '1582-10-04 23:59:59'),
 (4, 'infinity', array['infinity', '-infinity', '2020-01-01']::date[], 'infinity'),
 (5, '-infinity', null, '-infinity');
