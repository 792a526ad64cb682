insert into a (id) values (1);
insert into a values (2, null, null, null, null, null, null, null, null, null);
update a set r = 2 where id = 1;
delete from a where id = 2;
