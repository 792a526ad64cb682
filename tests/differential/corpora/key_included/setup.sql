create table t (a int, b int, v text, w text, primary key (a, b));
insert into t values (7, 8, 'there before', 'w'), (9, 10, 'as well', null);
