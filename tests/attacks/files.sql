-- Out of the tables: files, network, environment, extensions. {A} is the CRM's accounts, {Q} the review queue.
-- expect: refused
SELECT * FROM read_csv('/etc/passwd', sep=':')
-- expect: refused
SELECT * FROM read_csv_auto('/etc/passwd')
-- expect: refused
SELECT content FROM read_text('/proc/self/environ')
-- expect: refused
SELECT content FROM "read_text"('/proc/self/environ')
-- expect: refused
SELECT content FROM [read_text]('/proc/self/environ')
-- expect: refused
SELECT content FROM system.main.read_text('/proc/self/cmdline')
-- expect: refused
SELECT content FROM READ_TEXT /* x */ ('/etc/passwd')
-- expect: refused
SELECT * FROM read_blob('/etc/hostname')
-- expect: refused
SELECT * FROM read_json('/etc/hosts')
-- expect: refused
SELECT * FROM read_ndjson_objects('/etc/hosts')
-- expect: refused
SELECT * FROM read_parquet(['a', 'b'])
-- expect: refused
SELECT * FROM parquet_metadata('/etc/passwd')
-- expect: refused
SELECT * FROM read_xlsx('book.xlsx')
-- expect: refused
SELECT * FROM '/etc/passwd.csv'
-- expect: refused
SELECT * FROM "/etc/passwd"
-- expect: refused
SELECT * FROM [/etc/passwd]
-- expect: refused
SELECT * FROM 'https://example.com/x.parquet'
-- expect: refused
SELECT * FROM 's3://bucket/x.parquet'
-- expect: refused
SELECT * FROM "goldens"."r1.csv"
-- expect: refused
SELECT x.f FROM "/etc/passwd" AS x, (WITH "/etc/passwd" AS (SELECT 1 AS f) SELECT f FROM "/etc/passwd") AS y
-- expect: refused
SELECT * FROM glob('/*')
-- expect: refused
SELECT unnest(glob('/*'))
-- expect: refused
SELECT * FROM sniff_csv('/etc/passwd')
-- expect: refused
SELECT (SELECT string_agg(content, '') FROM read_text('/etc/passwd'))
-- expect: refused
SELECT Name FROM {A} ORDER BY (SELECT size FROM read_blob('/etc/passwd'))
-- expect: refused
SELECT Name FROM {A} GROUP BY Name HAVING COUNT(*) > (SELECT COUNT(*) FROM glob('/*'))
-- expect: refused
SELECT TOP (SELECT COUNT(*) FROM glob('/*')) Name FROM {A}
-- expect: refused
SELECT Name FROM {A} LIMIT (SELECT COUNT(*) FROM glob('/*'))
-- expect: refused
SELECT CASE WHEN 1 = 1 THEN (SELECT content FROM read_text('/etc/passwd')) END
-- expect: refused
SELECT list_transform([1, 2], x -> getenv('HOME'))
-- expect: refused
SELECT SUM(1) FILTER (WHERE EXISTS (SELECT 1 FROM glob('/*')))
-- expect: refused
SELECT SUM(1) OVER (ORDER BY (SELECT COUNT(*) FROM glob('/*')))
-- expect: refused
SELECT * REPLACE (getenv('HOME') AS Name) FROM {A}
-- expect: refused
SELECT a.Name FROM {A} a ASOF JOIN read_csv('/etc/passwd') b ON a.Name >= b.column0
-- expect: refused
SELECT * FROM (VALUES ((SELECT content FROM read_text('/etc/passwd')))) t(x)
-- expect: refused
SELECT * FROM {A} a CROSS APPLY (SELECT * FROM read_text('/etc/' + a.Name)) f
-- expect: refused
DESCRIBE SELECT * FROM read_csv('/etc/passwd')
-- expect: refused
SUMMARIZE SELECT * FROM read_csv('/etc/passwd')
-- expect: refused
SUMMARIZE '/etc/passwd'
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) SELECT content FROM read_text('/etc/passwd')
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) VALUES ((SELECT content FROM read_text('/etc/passwd')))
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) FROM '/etc/passwd'
-- expect: refused
DELETE FROM {Q} WHERE ACCOUNT_NAME IN (SELECT content FROM read_text('/etc/passwd'))
-- expect: refused
DELETE FROM {Q} WHERE getenv('HOME') = ACCOUNT_NAME
-- expect: refused
SELECT getenv('ANTHROPIC_API_KEY')
-- expect: refused
SELECT "getenv"('PATH')
-- expect: refused
SELECT system.main.getvariable('x')
-- expect: refused
SELECT write_log('x')
-- expect: refused
SELECT * FROM write_blob('x', 'y')
-- expect: refused
COPY (SELECT 1) TO 'leak.csv'
-- expect: refused
COPY {Q} FROM '/etc/passwd'
-- expect: refused
COPY {A} TO '/dev/stdout' (FORMAT csv)
-- expect: refused
COPY FROM DATABASE CRM_System TO Warehouse_System
-- expect: refused
EXPORT DATABASE 'leakdir'
-- expect: refused
IMPORT DATABASE 'leakdir'
-- expect: refused
ATTACH 'golden.duckdb' AS g
-- expect: refused
ATTACH ':memory:' AS m
-- expect: refused
DETACH CRM_System
-- expect: refused
INSTALL httpfs
-- expect: refused
LOAD httpfs
-- expect: refused
FORCE INSTALL httpfs FROM community
-- expect: refused
UPDATE EXTENSIONS
-- expect: refused
CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')
-- expect: refused
SELECT * FROM which_secret('s3://x', 's3')
-- expect: refused
SELECT * FROM sqlite_scan('x.db', 't')
-- expect: refused
SELECT * FROM postgres_query('host=localhost', 'SELECT 1')
-- expect: refused
SELECT * FROM arrow_scan(1, 2, 3)
-- expect: refused
SELECT * FROM pandas_scan(94000000000)
-- expect: refused
SELECT * FROM python_map_function()
-- expect: refused
SELECT * FROM df
-- expect: refused
SELECT * FROM self
-- expect: refused
LOAD '/tmp/evil.duckdb_extension'
-- expect: refused
WITH "Ä.csv" AS (SELECT 1 AS a) SELECT * FROM "ä.csv"
-- expect: refused
WITH "Ä/x.parquet" AS (SELECT 1 AS a) SELECT * FROM "ä/x.parquet"
-- expect: refused
WITH "ДАННЫЕ.json" AS (SELECT 1 AS a) SELECT * FROM "данные.json"
-- expect: refused
WITH x AS (SELECT * FROM "y.csv"), "y.csv" AS (SELECT 1 AS a) SELECT * FROM x
-- expect: refused
WITH x AS (WITH "y.csv" AS (SELECT 1 AS a) SELECT * FROM "y.csv") SELECT * FROM "y.csv"
-- expect: refused
SELECT * FROM (WITH "t.csv" AS (SELECT 1 AS a) SELECT * FROM "t.csv") q, "t.csv"
-- expect: refused
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r, glob('*') WHERE n < 3) SELECT * FROM r
-- expect: refused
WITH t AS MATERIALIZED (SELECT content FROM read_text('x')) SELECT 1
-- expect: refused
SELECT 1 FROM {A} a WHERE a.Id IN (SELECT b.Id FROM {A} b WHERE b.Name = (SELECT content FROM read_text(b.Name)))
-- expect: refused
SELECT * FROM {A} a JOIN LATERAL (SELECT * FROM read_csv(a.Name)) x ON TRUE
-- expect: refused
SELECT * FROM {A} WHERE Name = 'x' UNION ALL SELECT * FROM read_csv('x')
