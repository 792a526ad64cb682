insert into changing values (1, 'x', 1), (2, 'y', 2), (3, 'z', 3);
select pg_sleep(0.7) \g /dev/null
alter table changing replica identity full;
select pg_sleep(0.7) \g /dev/null
update changing set a = 'xx' where id = 1;
delete from changing where id = 2;
select pg_sleep(0.7) \g /dev/null
refresh materialized view concurrently seen;
select pg_sleep(0.7) \g /dev/null
alter table changing rename a to b;
select pg_sleep(0.7) \g /dev/null
insert into changing values (4, 'renamed', 4);
update changing set b = 'again' where id = 1;
delete from changing where id = 3;
select pg_sleep(0.7) \g /dev/null
alter table changing replica identity default;
select pg_sleep(0.7) \g /dev/null
update changing set n = 9 where id = 4;
delete from changing where id = 4;
