-- Statements that would take all memory or all time. They end in an error within the limits.
-- expect: limited
SELECT repeat('x', 4000000000)
-- expect: limited
SELECT REPLICATE(REPLICATE('ab', 60000), 60000)
-- expect: limited
SELECT rpad('x', 1500000000, 'y')
-- expect: limited
SELECT SPACE(2000000000)
-- expect: limited
SELECT generate_series(1, 1000000000)
-- expect: limited
SELECT COUNT(*) FROM (SELECT unnest(range(1000000000)) AS x) t
-- expect: limited
SELECT list_transform(range(50000000), x -> repeat('a', 1000))
-- expect: limited
SELECT STRING_AGG(repeat('x', 1000), ',') FROM range(10000000)
-- expect: limited
SELECT array_agg(range) FROM range(1000000000)
-- expect: limited
SELECT COUNT(*) FROM {A} a, {A} b, {A} c, {A} d
-- expect: limited
SELECT COUNT(DISTINCT a.Name || b.Name || c.Name) FROM {A} a, {A} b, {A} c
-- expect: limited
SELECT * FROM range(1000000000) ORDER BY random()
-- expect: limited
WITH RECURSIVE n AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM n) SELECT COUNT(*) FROM n
-- expect: limited
WITH RECURSIVE n AS (SELECT 1 AS x UNION ALL SELECT 1 FROM n, n AS m) SELECT COUNT(*) FROM n
-- expect: limited
WITH RECURSIVE n AS (SELECT 'x' AS x UNION ALL SELECT x || x FROM n) SELECT MAX(LEN(x)) FROM n
-- expect: limited
SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))
-- expect: limited
SELECT MAX(range) FROM range(100000000000)
-- expect: limited
SELECT printf('%2000000000d', 1)
-- expect: limited
SELECT replace(repeat('a', 100000), 'a', repeat('b', 100000))
-- expect: limited
SELECT json_object('a', repeat('x', 500000000))
-- expect: limited
INSERT INTO {Q} (ACCOUNT_NAME) SELECT repeat('x', 1000000) FROM {A}, {A} b
-- expect: limited
INSERT INTO {Q} (ACCOUNT_NAME, REASON) SELECT a.Name, b.Name FROM {A} a, {A} b, {A} c
-- expect: limited
DELETE FROM {Q} WHERE (SELECT COUNT(*) FROM range(100000000000)) = 1
