insert into debezium_signal values ('ask', 'execute-snapshot', '{"data-collections": [" public.keyed "], "type": null, "surrogate-key": "  ", "additional-conditions": null}');
select pg_sleep(6) \g /dev/null
insert into debezium_signal values ('not-1', 'execute-snapshot', '{"data-collections": ["public.keyed"], "type": "other"}'), ('not-2', 'execute-snapshot', '{"data-collections": []}'), ('not-3', 'nonsense', '{"data-collections": ["public.keyed"]}'), ('not-4', 'execute-snapshot', null), ('not-5', 'execute-snapshot', 'no JSON'), ('not-6', 'stop-snapshot', '{"data-collections": null}');
insert into keyed values (100, 100, 100);
