-- Tricks of every kind that another file does not have: places for a call, kinds of quotes, forms of statements.
-- expect: refused
COPY {A} (Name) TO 's3://x/y' (FORMAT parquet)
-- expect: refused
COPY (SELECT * FROM {A}) TO '/dev/stderr'
-- expect: refused
FROM 'file.csv'
-- expect: refused
FROM "data/*.csv"
-- expect: refused
FROM read_csv_auto('*.csv')
-- expect: refused
SELECT * FROM "s3://bucket/key"
-- expect: refused
SELECT * FROM 'goldens/r1.json' LIMIT 1
-- expect: refused
SELECT * FROM [../goldens/r1.json]
-- expect: refused
SELECT * FROM `x.csv`
-- expect: refused
SELECT * FROM $$x.csv$$
-- expect: value [["a"]]
SELECT $$a$$
-- expect: value [["a'b"]]
SELECT $tag$a'b$tag$
-- expect: refused
SELECT * FROM glob($$/*$$)
-- expect: refused
SELECT e'\x41'
-- expect: refused
SELECT E'a\nb'
-- expect: refused
SELECT U&'\0041'
-- expect: refused
SELECT X'41'
-- expect: value [[1]]
SELECT 1 /* /* */ */
-- expect: refused
SELECT 1 /* a /* b */
-- expect: refused
SELECT * FROM {A} a POSITIONAL JOIN {A} c LIMIT 1
-- expect: refused
SELECT * FROM {A} a POSITIONAL JOIN duckdb_settings() c LIMIT 1
-- expect: refused
SELECT COLUMNS(*) FROM duckdb_settings()
-- expect: refused
SELECT COLUMNS(c -> (SELECT COUNT(*) FROM glob('*')) > 0) FROM {A} LIMIT 1
-- expect: refused
SELECT * EXCLUDE (Id) REPLACE (getenv('X') AS Name) FROM {A}
-- expect: refused
SELECT UNPACK(x) FROM (SELECT {{'a': 1}} AS x) t
-- expect: value [[1, 2]]
SELECT unnest({{'a': 1, 'b': 2}})
-- expect: refused
TABLE duckdb_settings
-- expect: refused
TABLE {A}
-- expect: refused
SUMMARIZE duckdb_settings()
-- expect: refused
SUMMARIZE FROM read_csv('x')
-- expect: refused
SELECT * FROM (SUMMARIZE 'x.csv')
-- expect: refused
SELECT * FROM (TABLE duckdb_settings) t
-- expect: refused
SELECT * FROM (FROM duckdb_settings()) t
-- expect: refused
SELECT * FROM (PIVOT duckdb_settings ON name USING MAX(value)) t
-- expect: refused
SELECT * FROM (CALL duckdb_settings()) t
-- expect: refused
SELECT * FROM (EXPLAIN SELECT 1) t
-- expect: refused
SELECT * FROM (PRAGMA version) t
-- expect: refused
SELECT * FROM (SHOW ALL TABLES) t
-- expect: refused
SELECT * FROM (INSERT INTO {Q} (ACCOUNT_NAME) VALUES ('x')) t
-- expect: refused
SELECT * FROM pg_catalog.pg_tables
-- expect: refused
SELECT * FROM pg_catalog.pg_attribute
-- expect: refused
SELECT * FROM CRM_System.pg_catalog.pg_class
-- expect: refused
SELECT * FROM CRM_System.information_schema.key_column_usage
-- expect: refused
SELECT * FROM CRM_System.main.sqlite_master
-- expect: refused
SELECT * FROM "CRM_System".sqlite_master
-- expect: refused
SELECT * FROM sqlite_schema
-- expect: refused
SELECT * FROM sqlite_temp_master
-- expect: refused
SELECT sql_auto_complete('SEL')
-- expect: refused
SELECT * FROM sql_auto_complete('SEL')
-- expect: refused
SELECT * FROM from_substrait('x'::BLOB)
-- expect: refused
SELECT * FROM from_substrait_json('x')
-- expect: refused
CALL get_substrait('SELECT 1')
-- expect: refused
MERGE INTO {Q} USING (SELECT 1) s ON 1=1 WHEN MATCHED THEN DELETE
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) VALUES ('x') RETURNING (SELECT content FROM read_text('/etc/passwd'))
-- expect: refused
INSERT OR REPLACE INTO {Q} VALUES ('x', 'y', NULL)
-- expect: refused
INSERT INTO {Q} AS t (ACCOUNT_NAME) VALUES ('x') ON CONFLICT DO UPDATE SET REASON = 'z'
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) TABLE duckdb_settings
-- expect: refused
INSERT INTO {Q} BY POSITION SELECT 'x'
-- expect: refused
INSERT INTO {Q} SELECT * FROM {Q}
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) SELECT 'a' WHERE FALSE UNION ALL FROM duckdb_settings() SELECT name
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) (WITH r AS (SELECT content FROM read_text('x')) SELECT content FROM r)
-- expect: refused
WITH d AS (DELETE FROM {Q}) SELECT 1
-- expect: refused
WITH d AS (TRUNCATE {Q}) SELECT 1
-- expect: refused
WITH x AS (SELECT 1) INSERT INTO {Q} (ACCOUNT_NAME) SELECT content FROM read_text('/etc/passwd')
-- expect: refused
WITH x AS (SELECT 1) DELETE FROM {A}
-- expect: refused
WITH x AS (SELECT 1) UPDATE {A} SET Name = 'x'
-- expect: refused
TRUNCATE {Q}
-- expect: refused
CREATE TEMP VIEW v AS SELECT 1
-- expect: refused
CREATE OR REPLACE TEMP TABLE t AS SELECT 1
-- expect: refused
CREATE OR REPLACE VIEW v AS FROM read_text('x')
-- expect: refused
CREATE TRIGGER tr BEFORE DELETE ON {Q} FOR EACH STATEMENT DELETE FROM {A}
-- expect: refused
SET VARIABLE v = (SELECT content FROM read_text('x'))
-- expect: refused
SELECT getvariable('v')
-- expect: refused
SELECT 1 WHERE $1 = 1
-- expect: refused
SELECT $name
-- expect: refused
SELECT :name
-- expect: refused
SELECT ?1
-- expect: refused
SELECT * FROM {A} WHERE Id = ?
-- expect: refused
SELECT * FROM {A} LIMIT $1
-- expect: refused
EXECUTE IMMEDIATE 'SELECT 1'
-- expect: refused
PREPARE x AS DELETE FROM {A}; EXECUTE x
-- expect: refused
SELECT * FROM query_table(['duckdb_settings'])
-- expect: refused
SELECT * FROM query('SELECT * FROM ' || 'duckdb_settings()')
-- expect: refused
SELECT json_execute_serialized_sql('x')
-- expect: refused
SELECT * FROM json_execute_serialized_sql((SELECT json_serialize_sql('SELECT 1')))
-- expect: refused
PRAGMA json_execute_serialized_sql('x')
-- expect: refused
ЅELECT 1
-- expect: refused
SEＬECT 1
-- expect: refused
SELECT 1 FRОM {A}
-- expect: refused
ＤＥＬＥＴＥ FROM {A}
-- expect: refused
SELECT * FROM ｒｅａｄ＿ｔｅｘｔ('x')
-- expect: refused
SELECT ⅰ
-- expect: refused
SELECT * FROM {A} WHERE Name = ‘x’
-- expect: value [[1]]
SELECT 1;;
-- expect: value [[1]]
;SELECT 1
-- expect: value [[1]]
SELECT 1; /* x */ ;
-- expect: refused
SELECT 1; SELECT
-- expect: refused
SELECT 1 SELECT 2
-- expect: refused
SELECT 1 UNION SELECT 2; DROP TABLE {A}
-- expect: refused
BEGIN TRANSACTION; DELETE FROM {A}; COMMIT
-- expect: refused
ROLLBACK TRANSACTION
-- expect: refused
ABORT
-- expect: refused
SAVEPOINT a
-- expect: refused
EXPLAIN (FORMAT json) SELECT 1
-- expect: refused
EXPLAIN ANALYZE SELECT 1
-- expect: refused
DESCRIBE read_csv('x')
-- expect: refused
DESCRIBE INSERT INTO {Q} (ACCOUNT_NAME) VALUES ('x')
-- expect: refused
DESCRIBE DELETE FROM {Q}
-- expect: refused
SHOW CREATE TABLE {A}
-- expect: refused
SHOW TABLES FROM CRM_System
-- expect: refused
HELP
-- expect: refused
.tables
-- expect: refused
.read x.sql
-- expect: refused
\d
-- expect: refused
ATTACH IF NOT EXISTS ':memory:' AS m (TYPE sqlite)
-- expect: refused
ATTACH 'ducklake:x' AS y
-- expect: refused
ATTACH '' AS w (TYPE postgres, SECRET s)
-- expect: refused
USE memory.meta
-- expect: refused
INSTALL spatial FROM 'http://x'
-- expect: refused
LOAD 'x.so'
-- expect: refused
UPDATE EXTENSIONS (httpfs)
-- expect: refused
CREATE PERSISTENT SECRET s (TYPE s3)
-- expect: refused
DROP SECRET s
-- expect: refused
ALTER DATABASE CRM_System RENAME TO x
-- expect: refused
ALTER SYSTEM SET memory_limit='1TB'
-- expect: refused
CREATE MACRO CRM_System.main.sum(x) AS 1
-- expect: refused
CREATE MACRO t() AS TABLE SELECT 1
-- expect: refused
EXPORT DATABASE '/x' (FORMAT parquet)
-- expect: refused
SELECT * FROM {A} AT (VERSION => 1)
-- expect: refused
SELECT * FROM {A} FOR SYSTEM_TIME AS OF '2020-01-01'
-- expect: refused
SELECT * FROM memory.main.x
-- expect: refused
SELECT * FROM temp.information_schema.columns
-- expect: refused
SELECT * FROM system.main.duckdb_functions()
-- expect: refused
SELECT * FROM "system"."main"."read_text"('x')
-- expect: refused
SELECT system.main.getenv('x')
-- expect: refused
SELECT "system"."main"."current_setting"('x')
-- expect: refused
SELECT main.current_setting('x')
-- expect: refused
SELECT CRM_System.main.upper('x')
-- expect: refused
SELECT pg_catalog.current_setting('x')
-- expect: refused
SELECT 'x'.current_setting()
-- expect: refused
SELECT ('HOME').getenv()
-- expect: refused
SELECT ('temp_directory').current_setting()
-- expect: refused
SELECT Name.getenv() FROM {A}
-- expect: refused
SELECT list_transform(list_value('HOME'), getenv)
-- expect: refused
SELECT list_aggregate(list_value(1), 'current_setting')
-- expect: refused
SELECT list_aggr(list_value('a'), 'getenv')
-- expect: refused
SELECT list_reduce(list_value('a','b'), (x, y) -> current_setting(x))
-- expect: refused
SELECT list_filter(list_value('a'), lambda x: current_setting(x) = 'a')
-- expect: refused
SELECT list_aggregate(list_value(1,2), 'reservoir_quantile', 0.5)
-- expect: refused
SELECT SUM(1) OVER w WINDOW w AS (ORDER BY current_setting('a'))
-- expect: refused
SELECT SUM(1 ORDER BY current_setting('a'))
-- expect: refused
SELECT SUM(1) FILTER (current_setting('a') = 'x')
-- expect: refused
SELECT STRING_AGG(Name, current_setting('a')) FROM {A}
-- expect: refused
SELECT * FROM {A} TABLESAMPLE (current_setting('x')) 
-- expect: refused
SELECT * FROM range((SELECT COUNT(*) FROM glob('*')))
-- expect: refused
SELECT * FROM unnest(glob('*'))
-- expect: refused
SELECT * FROM unnest((SELECT list(content) FROM read_text('x')))
-- expect: value [[1, 1], [2, 2]]
SELECT * FROM generate_series(1, 2) WITH ORDINALITY
-- expect: refused
SELECT * FROM ROWS FROM (duckdb_settings(), range(3))
-- expect: refused
SELECT * FROM LATERAL duckdb_settings()
-- expect: refused
SELECT * FROM {A}, LATERAL (SELECT * FROM duckdb_settings()) x
-- expect: refused
SELECT * FROM {A} SEMI JOIN read_csv('x') y ON 1=1
-- expect: refused
SELECT CASE WHEN (SELECT COUNT(*) FROM glob('/*')) > 0 THEN 1 END
-- expect: refused
SELECT 1 IN (SELECT content FROM read_text('x'))
-- expect: refused
SELECT 1 = ALL (SELECT size FROM read_text('x'))
-- expect: refused
SELECT ARRAY(SELECT content FROM read_text('x'))
-- expect: refused
SELECT ROW((SELECT 1 FROM glob('*')))
-- expect: refused
SELECT (SELECT * FROM glob('*')).file
-- expect: refused
SELECT EXTRACT(YEAR FROM (SELECT last_modified FROM read_text('x')))
-- expect: refused
SELECT CAST((SELECT content FROM read_text('x')) AS INT)
-- expect: refused
SELECT TRY((SELECT content FROM read_text('x')))
-- expect: refused
SELECT * FROM (VALUES (current_setting('x'))) v
-- expect: refused
VALUES (current_setting('x'))
-- expect: refused
VALUES ((SELECT content FROM read_text('x')))
-- expect: refused
SELECT 1 LIMIT (SELECT COUNT(*) FROM glob('*'))
-- expect: refused
SELECT 1 OFFSET (SELECT COUNT(*) FROM glob('*'))
-- expect: refused
SELECT DISTINCT ON (current_setting('x')) 1
-- expect: refused
SELECT * FROM {A} GROUP BY ROLLUP(current_setting('x'))
-- expect: refused
SELECT 1 AS x GROUP BY GROUPING SETS ((current_setting('x')), ())
-- expect: refused
SELECT * FROM {A} PIVOT (COUNT(*) FOR Name IN (SELECT current_setting('x'))) p
-- expect: refused
SELECT * FROM {A} UNPIVOT (v FOR n IN (SELECT 1)) p
-- expect: refused
SELECT CAST(1 AS STRUCT(a INT)), CAST('x' AS ENUM('a'))
-- expect: refused
SELECT CAST('x' AS CRM_System.main.foo)
-- expect: refused
SELECT 'x' COLLATE nope
-- expect: refused
SELECT @@language
-- expect: refused
SELECT @@GLOBAL.version
-- expect: refused
SELECT DATABASE(), SCHEMA()
-- expect: refused
SELECT USER(), SYSTEM_USER, SUSER_NAME(), APP_NAME(), @@SPID
-- expect: refused
SELECT OBJECT_ID('x'), TYPE_NAME(1), COL_NAME(1,1)
-- expect: refused
SELECT LOAD_EXTENSION('x')
-- expect: refused
SELECT sqlite_version()
-- expect: refused
SELECT readfile('/etc/passwd'), writefile('x', 'y')
-- expect: refused
SELECT pg_ls_dir('/'), pg_read_binary_file('x')
-- expect: refused
SELECT UTL_FILE.FOPEN('x')
-- expect: refused
SELECT SLEEP(5), BENCHMARK(1,1)
-- expect: refused
SELECT http_get('http://x')
-- expect: refused
SELECT * FROM http_get('http://x')
-- expect: refused
SELECT * FROM shellfs('ls |')
-- expect: refused
SELECT * FROM 'ls |'
-- expect: refused
SELECT * FROM read_csv('ls |')
-- expect: refused
SELECT * FROM {A} ORDER BY getenv('HOME')
-- expect: refused
SELECT * FROM {A} ORDER BY (SELECT content FROM read_text('x')) LIMIT 1
-- expect: refused
SELECT LEAST(1, error('x'))
-- expect: refused
SELECT assert_true(false, 'a')
-- expect: refused
SELECT write_log('a')
-- expect: refused
SELECT enable_logging('QueryLog')
-- expect: refused
SELECT md5(current_query())
-- expect: refused
SELECT nextval('CRM_System.Salesforce.Account_Id')
-- expect: refused
SELECT nextval('"Warehouse_System"."WH_DATA"."REVIEW_QUEUE_ID"')
-- expect: refused
SELECT currval('x')
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME, ID) VALUES ('x', DEFAULT)
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) VALUES (nextval('x'))
-- expect: refused
SELECT 0/0, 1.0/0, LOG(-1), SQRT(-1)
-- expect: refused
SELECT 9223372036854775807 + 1
-- expect: refused
SELECT chr(0), chr(1114111), chr(55296)
-- expect: refused
SELECT "
-- expect: refused
SELECT '
-- expect: refused
SELECT [
-- expect: refused
SELECT /*
-- expect: refused
SELECT $$
-- expect: refused
SELECT (
-- expect: refused
WITH
-- expect: refused
WITH a
-- expect: refused
SELECT FROM
-- expect: refused
INSERT
-- expect: refused
INSERT INTO
-- expect: refused
DELETE
-- expect: refused
DELETE FROM {Q} WHERE
-- expect: refused
DELETE FROM {Q} LIMIT 1
-- expect: refused
DELETE FROM {Q} ORDER BY ID
-- expect: refused
DELETE {Q} WHERE ID = 1
-- expect: refused
DELETE q FROM {Q} q WHERE q.ID = 1
