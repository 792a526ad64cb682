create domain numbers as int[];
create domain words as text[];
create table lists (id int primary key, n numbers, w words);
create table modified (id int primary key, ts timestamp(3)[], tm time(0)[], tz timestamptz(3)[], v varchar(5)[], n numeric(5,2)[]);
create table unchanged (id int primary key, n int, w words);
alter table unchanged alter w set storage external;
insert into unchanged values (1, 1, (select array_agg(i::text) from generate_series(1, 2000) i));
