insert into t (e, q, p, d, a, n) values ('b', 'a', 'b', 'y', '{b}', 2.5); insert into u (v) values ('y');
insert into free values (2, 1.5, '{2.5}', 3.5);
insert into spans values (1, '1 day', '1 day', '1 day');
