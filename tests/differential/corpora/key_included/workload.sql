insert into t values (1, 2, 'x', 'y');
update t set v = 'z' where a = 7;
update t set b = 3 where a = 1;
delete from t where a = 9;
