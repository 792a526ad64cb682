-- The tables of the demo: every flight that left New York in 2013.
CREATE TABLE airlines (
    carrier text PRIMARY KEY,
    name    text NOT NULL
);
CREATE TABLE airports (
    faa   text PRIMARY KEY,
    name  text NOT NULL,
    lat   double precision NOT NULL,
    lon   double precision NOT NULL,
    alt   integer,
    tz    smallint,
    dst   "char",
    tzone text
);
CREATE TABLE planes (
    tailnum      text PRIMARY KEY,
    year         smallint,
    type         text,
    manufacturer text,
    model        text,
    engines      smallint,
    seats        smallint,
    speed        smallint,
    engine       text
);
CREATE TABLE weather (
    origin     text NOT NULL,
    year       smallint NOT NULL,
    month      smallint NOT NULL,
    day        smallint NOT NULL,
    hour       smallint NOT NULL,
    temp       numeric(5, 2),
    dewp       numeric(5, 2),
    humid      numeric(5, 2),
    wind_dir   smallint,
    wind_speed double precision,
    wind_gust  double precision,
    precip     numeric(4, 2),
    pressure   numeric(6, 1),
    visib      real,
    time_hour  timestamptz NOT NULL,
    PRIMARY KEY (origin, time_hour)
);
CREATE TABLE flights (
    year           smallint NOT NULL,
    month          smallint NOT NULL,
    day            smallint NOT NULL,
    dep_time       smallint,
    sched_dep_time smallint NOT NULL,
    dep_delay      smallint,
    arr_time       smallint,
    sched_arr_time smallint NOT NULL,
    arr_delay      smallint,
    carrier        text NOT NULL,
    flight         integer NOT NULL,
    tailnum        text,
    origin         text NOT NULL,
    dest           text NOT NULL,
    air_time       smallint,
    distance       smallint NOT NULL,
    hour           smallint NOT NULL,
    minute         smallint NOT NULL,
    time_hour      timestamptz NOT NULL,
    PRIMARY KEY (time_hour, carrier, flight)
);
