create table debezium_signal (id varchar(64) primary key, type varchar(32) not null, data text);
create table one (id int primary key, v text);
insert into one select g, 'v' || g from generate_series(1, 10) g;
create table two (a int, b text, v text, primary key (a, b));
insert into two select g % 3, 'k' || g, 'w' || g from generate_series(1, 9) g;
create table void (id int primary key);
create table nopk (v text);
insert into nopk values ('a'), ('b');
