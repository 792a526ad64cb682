create extension isn;
create type mood as enum ('sad', 'ok');
create table arrays_with_null (
  id int primary key, moods mood[], books isbn[], numbers ean13[], words tsvector[], bits bit(3)[], flags bit(1)[],
  shorts int2vector, oids oidvector);
