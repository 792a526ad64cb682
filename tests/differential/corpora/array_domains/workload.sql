insert into lists values (1, '{1,NULL,3}', array['a', 'b,c', null]), (2, '{}', null);
update lists set n = '{4}' where id = 2;
insert into modified values (1, '{2020-01-01 00:00:00.123}', '{12:34:56}', '{2020-01-01 00:00:00.9+00}', '{a}', '{1.5}');
update unchanged set n = 2;
