create domain numbers as int[];
create domain words as text[];
create table lists (id int primary key, n numbers, w words);
create table modified (id int primary key, ts timestamp(3)[], tm time(0)[], tz timestamptz(3)[], v varchar(5)[], n numeric(5,2)[]);
