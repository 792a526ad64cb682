create table changing (id int primary key, a text, n int);
create materialized view seen as select id, a from changing;
create unique index on seen (id);
