insert into one values (100, 'before the snapshots');
begin;
insert into debezium_signal values ('both', 'execute-snapshot', '{"data-collections": ["public.one", "public.two"], "type": "incremental"}');
insert into debezium_signal values ('wait', 'pause-snapshot', '{"type": "incremental"}');
commit;
select pg_sleep(5) \g /dev/null
insert into debezium_signal values ('go', 'resume-snapshot', '{"type": "incremental"}');
select pg_sleep(7) \g /dev/null
begin;
insert into debezium_signal values ('again', 'execute-snapshot', '{"data-collections": ["public.one", "public.two"], "type": "incremental"}');
insert into debezium_signal values ('not-two', 'stop-snapshot', '{"data-collections": ["public.two"], "type": "incremental"}');
commit;
select pg_sleep(7) \g /dev/null
begin;
insert into debezium_signal values ('third', 'execute-snapshot', '{"data-collections": ["public.one", "public.two"], "type": "incremental"}');
insert into debezium_signal values ('not-one', 'stop-snapshot', '{"data-collections": ["public.one"], "type": "incremental"}');
commit;
select pg_sleep(7) \g /dev/null
begin;
insert into debezium_signal values ('last', 'execute-snapshot', '{"data-collections": ["public.one"], "type": "incremental"}');
insert into debezium_signal values ('none', 'stop-snapshot', '{"type": "incremental"}');
commit;
select pg_sleep(5) \g /dev/null
insert into one values (101, 'after the snapshots');
