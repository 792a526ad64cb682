insert into moments values ('2019-01-01', 0);
insert into debezium_signal values ('ask', 'execute-snapshot', '{"data-collections": ["public.moments", "public.days"], "type": "incremental"}');
