create table a_few (id int primary key);
insert into a_few select generate_series(1, 2);
create table b_many (id int primary key);
insert into b_many select generate_series(1, 9);
create table c_some (id int primary key);
insert into c_some select generate_series(1, 5);
create table d_none (id int primary key);
analyze;
