insert into described values (2, 'y');
insert into debezium_signal values ('describe', 'schema-changes', '{"database": "waltap_apart", "schema": "public", "changes": [{"type": "ALTER", "id": "\"public\".\"described\"", "table": {"defaultCharsetName": null, "primaryKeyColumnNames": ["id"], "columns": [{"name": "id", "jdbcType": 4, "nativeType": 23, "typeName": "int4", "typeExpression": "int4", "charsetName": null, "length": 10, "position": 1, "optional": false, "autoIncremented": false, "generated": false}, {"name": "b", "jdbcType": 12, "nativeType": 25, "typeName": "text", "typeExpression": "text", "charsetName": null, "length": 10, "position": 2, "optional": true, "autoIncremented": false, "generated": false}]}}]}');
select pg_sleep(1) \g /dev/null
insert into described values (3, 'z');
update defaulted set w = 'y';
update defaulted set w = null;
update defaulted set v = null;
update nested set n = '{{1,2},{3,5}}', t = '{{a},{c}}';
