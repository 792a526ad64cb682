insert into moved values (1, 10, 'x');
insert into renamed values (1, 'x');
insert into dropped values (1, 'x');
select pg_sleep(1.5) \g /dev/null
alter table moved drop constraint moved_pkey;
alter table moved add primary key (b);
alter table renamed rename column v to w;
alter table dropped drop constraint dropped_pkey;
select pg_sleep(1.5) \g /dev/null
insert into moved values (1, 11, 'y');
update moved set v = 'z' where b = 11;
delete from moved where b = 10;
insert into renamed values (2, 'y');
update renamed set w = 'u' where id = 2;
delete from renamed where id = 1;
insert into dropped values (1, 'y');
begin;
insert into gone values (1, 'x');
drop table gone;
commit;
