insert into a_few values (100);
