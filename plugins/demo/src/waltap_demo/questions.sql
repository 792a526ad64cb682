-- Which airlines were late most?
SELECT a.name AS airline, count(*) AS flights,
       round(avg(f.arr_delay), 1) AS minutes_late,
       round(100 * avg(CASE WHEN f.arr_delay > 30 THEN 1 ELSE 0 END), 1) AS pct_over_30_min
FROM flights f JOIN airlines a ON a.carrier = f.carrier
WHERE f.arr_delay IS NOT NULL
GROUP BY a.name ORDER BY minutes_late DESC LIMIT 5;

-- Which routes were busiest?
SELECT f.origin || ' to ' || f.dest AS route, p.name AS destination, count(*) AS flights,
       round(avg(f.air_time)) AS minutes_in_the_air
FROM flights f JOIN airports p ON p.faa = f.dest
GROUP BY ALL ORDER BY flights DESC LIMIT 5;

-- What kind of weather cancels flights?
SELECT CASE WHEN w.visib < 1 THEN 'visibility below a mile'
            WHEN w.precip >= 0.1 THEN 'heavy rain or snow'
            WHEN w.wind_speed >= 25 THEN 'strong wind'
            WHEN w.precip > 0 THEN 'some rain or snow'
            ELSE 'fair' END AS weather,
       count(*) AS flights,
       count_if(f.dep_time IS NULL) AS cancelled,
       round(100 * avg(CASE WHEN f.dep_time IS NULL THEN 1 ELSE 0 END), 1) AS pct
FROM flights f JOIN weather w ON w.origin = f.origin AND w.time_hour = f.time_hour
GROUP BY 1 ORDER BY pct DESC;

-- How did the replayed day go? (from the history of its changes)
SELECT hour(planned) AS hour, count_if(_op = 'c') AS published,
       count(DISTINCT CASE WHEN dep_time IS NOT NULL THEN number END) AS departed,
       count(DISTINCT CASE WHEN arr_time IS NOT NULL THEN number END) AS arrived,
       count_if(_op = 'd') AS cancelled
FROM (
    SELECT *, from_utc_timestamp(time_hour, 'America/New_York') AS planned,
           carrier || flight AS number
    FROM flights_changes WHERE _op <> 'r'
)
WHERE date(planned) = DATE '{day}'
GROUP BY ALL ORDER BY hour;
