insert into kept_exact (id, paths, times) values
 (1, array['a.b', null, 'c']::ltree[], array['24:00:00', '12:00:00']::time[]),
 (2, null, null);
update kept_exact set paths = array['x']::ltree[], times = array['00:00:00']::time[] where id = 2;
delete from kept_exact where id = 1;
insert into searches values ('a', 1), ('b', 2);
delete from searches where n = 1;
