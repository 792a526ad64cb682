create table t (a int, b int, v text, primary key (a, b));
create table s (id serial primary key, v text);
create table f (a int primary key, v text);
alter table f replica identity full;
insert into t values (7, 8, 'there before');
insert into s values (7, 'there before');
