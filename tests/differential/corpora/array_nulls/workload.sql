insert into arrays_with_null values
 (1, '{sad,NULL,ok}', '{NULL,0-393-04002-X}', '{978-0-393-04002-9,NULL}', '{NULL,"''a'':1"}', '{101,NULL}', '{1,NULL,0}', '1 2', '3 4000000000'),
 (2, '{NULL}', '{}', null, '{}', '{}', '{}', '', ''),
 (3, '{ok}', '{0-393-04002-X}', '{978-0-393-04002-9}', '{"''b'':2"}', '{001,110}', '{0}', '-7', '0');
update arrays_with_null set moods = '{ok,NULL}' where id = 2;
delete from arrays_with_null where id = 1;
