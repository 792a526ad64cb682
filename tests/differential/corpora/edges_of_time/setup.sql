create table ends_of_time (id int primary key, tz timetz, tzs timetz(2)[], ts timestamp, tss timestamp[], ds date[]);
create table in_arrays (id int primary key, ds date[], tss timestamp[], tms time[], tzs timetz[], zs timestamptz[]);
create table endless (id int primary key, d date not null default '-infinity', z timestamptz not null default 'infinity');
create table between_calendars (id int primary key, d date, ts timestamp);
insert into between_calendars values (1, '1582-10-04', '1582-10-04 00:00:00'), (2, '1582-10-10', '1582-10-10 00:00:00'), (3, '1582-10-15', '1582-10-15 00:00:00');
create table endless_keys (d date primary key);
insert into endless_keys values ('-infinity');
