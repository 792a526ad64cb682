create domain numbers as int[];
create domain words as text[];
create table lists (id int primary key, n numbers, w words);
