insert into t values (1, 2, 'x');
update t set b = 3 where a = 1;
update t set a = 4 where a = 1;
delete from t where a = 4;
insert into s (v) values ('y');
update s set id = 9 where id = 1;
delete from s where id = 9;
insert into f values (1, 'z');
update f set a = 2;
