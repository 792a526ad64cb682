insert into one values (100, 'before the snapshots');
insert into debezium_signal values ('ad-hoc-1', 'execute-snapshot', '{"data-collections": ["public.one"], "type": "incremental"}');
select pg_sleep(6) \g /dev/null
insert into debezium_signal values ('ad-hoc-2', 'execute-snapshot', '{"data-collections": ["public.two", "public.void"], "type": "incremental"}');
select pg_sleep(6) \g /dev/null
insert into debezium_signal values ('ad-hoc-3', 'execute-snapshot', '{"data-collections": ["public.nopk"], "type": "incremental"}');
select pg_sleep(6) \g /dev/null
insert into debezium_signal values ('ad-hoc-4', 'execute-snapshot', '{"data-collections": ["public.one"], "type": "blocking"}');
select pg_sleep(6) \g /dev/null
insert into one values (101, 'after the snapshots');
