create table t (id int primary key, v text);
