insert into prices values (0.5, 0);
insert into fine values (0.25, 0);
insert into odd values (0, 0);
insert into doubled values (100, 1);
insert into debezium_signal values ('ask-1', 'execute-snapshot', '{"data-collections": ["public.prices", "public.fine"], "type": "incremental"}');
select pg_sleep(3) \g /dev/null
insert into debezium_signal values ('ask-2', 'execute-snapshot', '{"data-collections": ["public.odd"], "type": "incremental"}');
select pg_sleep(3) \g /dev/null
insert into debezium_signal values ('ask-3', 'execute-snapshot', '{"data-collections": ["public.doubled"], "type": "incremental"}');
