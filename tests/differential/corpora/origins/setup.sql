create table a (id int primary key, v text);
select pg_replication_origin_drop(roname) from pg_replication_origin where roname in ('waltap_far', 'waltap_près');
select pg_replication_origin_create('waltap_far'), pg_replication_origin_create('waltap_près');
