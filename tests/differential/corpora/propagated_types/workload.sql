insert into t (e, q, p, d, a, n) values ('b', 'a', 'b', 'y', '{b}', 2.5); insert into u (v) values ('y');
