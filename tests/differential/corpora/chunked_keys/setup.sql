create table debezium_signal (id varchar(64) primary key, type varchar(32) not null, data text);
create table prices (amount numeric(12,3) primary key, v int);
insert into prices select g * 1.125, g from generate_series(1, 5) g;
create table fine (amount numeric primary key, v int);
insert into fine select 0.1234567890123456789 + g * 0.0000000000000000001, g from generate_series(1, 5) g;
create table odd (amount numeric primary key, v int);
insert into odd values (1, 1), (2.5, 2), ('NaN', 3);
create table doubled (id int primary key, n int, twice int generated always as (n * 2) stored);
insert into doubled select g, g * 10 from generate_series(1, 5) g;
