insert into one values (100, 'before the snapshot');
begin;
insert into debezium_signal values ('ad-hoc-1', 'execute-snapshot', '{"data-collections": ["public.one"], "type": "blocking"}');
insert into noise select g from generate_series(1, 3000) g;
commit;
select pg_sleep(4) \g /dev/null
insert into one values (101, 'after the snapshot');
begin;
insert into debezium_signal values ('ad-hoc-2', 'execute-snapshot', '{"data-collections": ["public.two", "public.one"], "type": "BLOCKING", "additional-conditions": [{"data-collection": "public.one", "filter": "select * from public.one where id > 5 order by id desc"}]}');
insert into noise select g from generate_series(1, 3000) g;
commit;
select pg_sleep(4) \g /dev/null
begin;
insert into debezium_signal values ('ad-hoc-3', 'execute-snapshot', '{"data-collections": ["public.(nopk|single|empty|two|debezium_signal)"], "type": "blocking"}');
insert into noise select g from generate_series(1, 3000) g;
commit;
select pg_sleep(4) \g /dev/null
begin;
insert into debezium_signal values ('ad-hoc-4', 'execute-snapshot', '{"data-collections": ["public.one"], "type": "blocking", "additional-conditions": [{"data-collection": "public.one", "filter": "select nonsense from"}]}');
insert into noise select g from generate_series(1, 3000) g;
commit;
select pg_sleep(4) \g /dev/null
update one set v = 'in the end' where id = 1;
insert into unasked values (2);
