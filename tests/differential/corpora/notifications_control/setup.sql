create table debezium_signal (id varchar(64) primary key, type varchar(32) not null, data text);
create table one (id int primary key, v text);
insert into one select g, 'v' || g from generate_series(1, 10) g;
create table two (id int primary key, v text);
insert into two select g, 'w' || g from generate_series(1, 5) g;
