insert into a values (1, 'from here');
select pg_replication_origin_session_setup('waltap_far') \g /dev/null
insert into a values (2, 'without a position there');
begin;
select pg_replication_origin_xact_setup('0/1234', '2026-01-01') \g /dev/null
insert into a values (3, 'far'), (4, 'far');
select pg_logical_emit_message(true, 'p', 'in the transaction') \g /dev/null
commit;
select pg_logical_emit_message(false, 'p', 'in none') \g /dev/null
select pg_replication_origin_session_reset() \g /dev/null
insert into a values (5, 'from here again');
select pg_replication_origin_session_setup('waltap_près') \g /dev/null
begin;
select pg_replication_origin_xact_setup('FF/1234', '2026-01-01') \g /dev/null
update a set v = 'x' where id = 3;
truncate a;
commit;
select pg_replication_origin_session_reset() \g /dev/null
insert into a values (6, 'the end');
select pg_logical_emit_message(false, 'p', 'in none') \g /dev/null
