create table a_empty (id int primary key);
create table b_two (id int primary key, v text);
insert into b_two values (1, 'x'), (2, 'y');
create table c_empty (id int primary key);
create table d_one (id int primary key);
insert into d_one values (1);
create table e_empty (id int primary key);
create table f_empty (id int primary key, v text);
