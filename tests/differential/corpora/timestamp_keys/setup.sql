create table debezium_signal (id varchar(64) primary key, type varchar(32) not null, data text);
create table moments (at timestamp primary key, v int);
insert into moments select '2020-01-01'::timestamp + g * interval '1 day 0.000123 s', g from generate_series(1, 7) g;
create table days (day date primary key, v int);
insert into days select '2020-01-01'::date + g, g from generate_series(1, 5) g;
create table hours (hour time primary key);
insert into hours values ('10:00:00.123456');
