create table keyed (id int primary key, a int not null, b int not null);
insert into keyed select g, 10 - g, g % 3 from generate_series(1, 9) g;
alter table keyed replica identity full;
create table debezium_signal (id varchar(42) primary key, type varchar(32), data text);
