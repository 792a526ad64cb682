insert into lists values (1, '{1,NULL,3}', array['a', 'b,c', null]), (2, '{}', null);
update lists set n = '{4}' where id = 2;
