create table a (
  id int primary key,
  tz timestamptz(0) default '2000-01-01 00:00:00.000001+00'::timestamptz(0),
  tz3 timestamptz(3) default '2000-01-01 00:00:00.123987+00',
  ts timestamp(0) default '2000-01-01 00:00:00.700001'::timestamp(0),
  ts3 timestamp(3) default '2000-01-01 00:00:00.123987',
  t time(0) default '10:11:12.000009'::time(0),
  t3 time(3) default '10:11:12.123987',
  n numeric(6,2) default 1.239,
  n2 numeric(6,2) default '1.235'::numeric(6,2),
  r real default 1.23456789012
);
