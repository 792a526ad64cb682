insert into f_empty values (1, 'after');
insert into a_empty values (1);
