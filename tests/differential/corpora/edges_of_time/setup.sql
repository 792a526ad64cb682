create table ends_of_time (id int primary key, tz timetz, tzs timetz(2)[], ts timestamp, tss timestamp[], ds date[]);
