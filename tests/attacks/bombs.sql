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
-- expect: limited
SELECT md5(repeat('x', 1000000000))
-- expect: limited
SELECT md5(repeat(repeat('x', 30000), 30000))
-- expect: limited
WITH s0 AS (SELECT {{'a': 1, 'b': 1}} AS c), s1 AS (SELECT {{'a': c, 'b': c}} AS c FROM s0), s2 AS (SELECT {{'a': c, 'b': c}} AS c FROM s1), s3 AS (SELECT {{'a': c, 'b': c}} AS c FROM s2), s4 AS (SELECT {{'a': c, 'b': c}} AS c FROM s3), s5 AS (SELECT {{'a': c, 'b': c}} AS c FROM s4), s6 AS (SELECT {{'a': c, 'b': c}} AS c FROM s5), s7 AS (SELECT {{'a': c, 'b': c}} AS c FROM s6), s8 AS (SELECT {{'a': c, 'b': c}} AS c FROM s7), s9 AS (SELECT {{'a': c, 'b': c}} AS c FROM s8), s10 AS (SELECT {{'a': c, 'b': c}} AS c FROM s9), s11 AS (SELECT {{'a': c, 'b': c}} AS c FROM s10), s12 AS (SELECT {{'a': c, 'b': c}} AS c FROM s11), s13 AS (SELECT {{'a': c, 'b': c}} AS c FROM s12), s14 AS (SELECT {{'a': c, 'b': c}} AS c FROM s13), s15 AS (SELECT {{'a': c, 'b': c}} AS c FROM s14), s16 AS (SELECT {{'a': c, 'b': c}} AS c FROM s15), s17 AS (SELECT {{'a': c, 'b': c}} AS c FROM s16), s18 AS (SELECT {{'a': c, 'b': c}} AS c FROM s17), s19 AS (SELECT {{'a': c, 'b': c}} AS c FROM s18), s20 AS (SELECT {{'a': c, 'b': c}} AS c FROM s19), s21 AS (SELECT {{'a': c, 'b': c}} AS c FROM s20), s22 AS (SELECT {{'a': c, 'b': c}} AS c FROM s21), s23 AS (SELECT {{'a': c, 'b': c}} AS c FROM s22), s24 AS (SELECT {{'a': c, 'b': c}} AS c FROM s23), s25 AS (SELECT {{'a': c, 'b': c}} AS c FROM s24), s26 AS (SELECT {{'a': c, 'b': c}} AS c FROM s25) SELECT c FROM s26
-- expect: limited
WITH s0 AS (SELECT list_value(1, 1) AS c), s1 AS (SELECT list_value(c, c) AS c FROM s0), s2 AS (SELECT list_value(c, c) AS c FROM s1), s3 AS (SELECT list_value(c, c) AS c FROM s2), s4 AS (SELECT list_value(c, c) AS c FROM s3), s5 AS (SELECT list_value(c, c) AS c FROM s4), s6 AS (SELECT list_value(c, c) AS c FROM s5), s7 AS (SELECT list_value(c, c) AS c FROM s6), s8 AS (SELECT list_value(c, c) AS c FROM s7), s9 AS (SELECT list_value(c, c) AS c FROM s8), s10 AS (SELECT list_value(c, c) AS c FROM s9), s11 AS (SELECT list_value(c, c) AS c FROM s10), s12 AS (SELECT list_value(c, c) AS c FROM s11), s13 AS (SELECT list_value(c, c) AS c FROM s12), s14 AS (SELECT list_value(c, c) AS c FROM s13), s15 AS (SELECT list_value(c, c) AS c FROM s14), s16 AS (SELECT list_value(c, c) AS c FROM s15), s17 AS (SELECT list_value(c, c) AS c FROM s16), s18 AS (SELECT list_value(c, c) AS c FROM s17), s19 AS (SELECT list_value(c, c) AS c FROM s18), s20 AS (SELECT list_value(c, c) AS c FROM s19), s21 AS (SELECT list_value(c, c) AS c FROM s20), s22 AS (SELECT list_value(c, c) AS c FROM s21), s23 AS (SELECT list_value(c, c) AS c FROM s22), s24 AS (SELECT list_value(c, c) AS c FROM s23), s25 AS (SELECT list_value(c, c) AS c FROM s24), s26 AS (SELECT list_value(c, c) AS c FROM s25), s27 AS (SELECT list_value(c, c) AS c FROM s26), s28 AS (SELECT list_value(c, c) AS c FROM s27), s29 AS (SELECT list_value(c, c) AS c FROM s28), s30 AS (SELECT list_value(c, c) AS c FROM s29) SELECT c FROM s30
-- expect: limited
SELECT SPACE(900000000)
-- expect: limited
SELECT bitstring('1', 2000000000)
-- expect: limited
SELECT list_sort(range(30000000))
-- expect: limited
SELECT rpad('x', 1500000*1000, 'y')
-- expect: limited
SELECT rpad('x', n, 'y') FROM (SELECT 1500000000 AS n) t
-- expect: limited
SELECT repeat('ab', LEN(repeat('x', 40000)) * 40000)
-- expect: limited
SELECT repeat('ab', CAST('2000000000' AS INT))
-- expect: limited
SELECT LEN(repeat(repeat('x', 9000000), 9000000))
-- expect: limited
SELECT lpad('', CAST(POWER(10, 9) AS INT), 'abc')
-- expect: limited
SELECT list_reverse_sort(range(0, -30000000, -1))
-- expect: limited
SELECT COUNT(*) FROM (SELECT unnest(generate_series(1, 10**9)) AS x) t
-- expect: limited
SELECT list_transform(range(1000), x -> list_transform(range(1000), y -> list_transform(range(1000), z -> z)))
-- expect: limited
SELECT flatten(list_transform(range(10000), x -> range(10000)))
-- expect: limited
SELECT damerau_levenshtein(repeat('a', 100000), repeat('b', 100000))
-- expect: limited
SELECT jaro_winkler_similarity(repeat('ab', 500000), repeat('b', 500000))
-- expect: limited
SELECT strftime(TIMESTAMP '2026-01-01', repeat('%Y', 10000000))
-- expect: limited
SELECT array_to_string(list_transform(range(100000), x -> 'a'), repeat('b', 100000))
-- expect: limited
SELECT string_agg(a.Name || b.Name, ',') FROM {A} a, {A} b, {A} c
-- expect: limited
SELECT list(a.Name) FROM {A} a, {A} b, {A} c
-- expect: limited
SELECT histogram(a.Name || b.Name || c.Name) FROM {A} a, {A} b, {A} c
-- expect: limited
SELECT MAX(LEN(s)) FROM (SELECT STRING_AGG(x, ',') OVER (ORDER BY x) AS s FROM (SELECT CAST(range AS VARCHAR) AS x FROM range(100000)) t) u
-- expect: limited
SELECT COUNT(*) FROM range(100000) a, LATERAL (SELECT * FROM range(a.range)) b, LATERAL (SELECT * FROM range(b.range)) c
-- expect: limited
SELECT mode(range) OVER (ORDER BY range ROWS BETWEEN 1000000 PRECEDING AND 1000000 FOLLOWING) FROM range(3000000)
-- expect: limited
SELECT Name FROM {A} ORDER BY list_sort(range(1000000))
-- expect: limited
SELECT COUNT(*) FROM {A} a JOIN {A} b ON levenshtein(a.Name || repeat('x', 5000), b.Name || repeat('y', 5000)) > 3
-- expect: limited
INSERT INTO {Q} (ACCOUNT_NAME) SELECT rpad('x', n, 'y') FROM (SELECT 1500000000 AS n) t
