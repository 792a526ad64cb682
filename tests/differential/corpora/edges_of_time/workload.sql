insert into ends_of_time values
 (1, '24:00:00+00', '{12:34:56.78+00,01:02:03+02}', '294276-12-31 23:59:59', '{0044-03-15 00:00:00 BC}', '{0044-03-15 BC}'),
 (2, '24:00:00-05', '{23:59:59.99+00,NULL}', '2020-01-01 00:00:00', '{294276-12-31 23:59:59,NULL}', '{2020-01-01,NULL}');
insert into in_arrays values
 (1, '{1582-10-04,1582-10-10,1582-10-15}', '{0001-01-01 00:00:00,1582-10-10 00:00:00,1582-10-15 00:00:00}', '{23:59:59.999999}', '{23:59:59.999999+00}', '{-infinity,infinity,0001-01-01 00:00:00+00}');
insert into endless values (1, default, default);
delete from endless;
insert into endless_keys values ('infinity');
delete from endless_keys where d = '-infinity';
