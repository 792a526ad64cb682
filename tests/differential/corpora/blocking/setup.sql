create table debezium_signal (id varchar(64) primary key, type varchar(32) not null, data text);
create table one (id int primary key, v text);
insert into one select g, 'v' || g from generate_series(1, 6) g;
create table two (a int, b text, v numeric(10,2), primary key (a, b));
insert into two select g % 3, 'k' || g, g * 1.5 from generate_series(1, 5) g;
create table nopk (u uuid not null, v text);
insert into nopk select ('00000000-0000-0000-0000-0000000000' || lpad(g::text, 2, '0'))::uuid, 'n' || g from generate_series(1, 3) g;
create table empty (id int primary key);
create table single (id int primary key);
insert into single values (1);
create table unasked (id int primary key);
insert into unasked values (1);
-- written behind each signal in its transaction: the peer pauses there, not sooner or later
create table noise (n int);
