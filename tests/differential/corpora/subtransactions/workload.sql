begin;
insert into t values (1, 'x');
savepoint one;
insert into t values (2, 'y');
select pg_logical_emit_message(true, 'in-sub', 'kept') \g /dev/null
release savepoint one;
savepoint two;
select pg_logical_emit_message(true, 'in-sub', 'undone') \g /dev/null
insert into t values (3, 'z');
rollback to savepoint two;
insert into t values (4, 'w');
select pg_logical_emit_message(true, 'outside', 'kept') \g /dev/null
commit;
begin;
savepoint three;
select pg_logical_emit_message(true, 'in-sub', 'alone') \g /dev/null
release savepoint three;
commit;
begin;
savepoint four;
insert into t values (5, 'first in a subtransaction');
release savepoint four;
select pg_logical_emit_message(true, 'outside', 'behind it') \g /dev/null
commit;
begin;
select pg_logical_emit_message(true, 'one', 'in no subtransaction') \g /dev/null
select pg_logical_emit_message(true, 'two', 'in no subtransaction') \g /dev/null
commit;
begin;
savepoint five;
select pg_logical_emit_message(true, 'one', 'in one subtransaction') \g /dev/null
select pg_logical_emit_message(true, 'two', 'in one subtransaction') \g /dev/null
release savepoint five;
commit;
