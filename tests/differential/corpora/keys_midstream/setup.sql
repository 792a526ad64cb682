create table moved (a int primary key, b int not null, v text);
create table renamed (id int primary key, v text);
create table dropped (id int primary key, v text);
create table gone (id int primary key, v text not null default 'd');
