-- What the engine knows of itself: its catalog, settings, other statements as text, sequences, clocks.
-- expect: refused
SELECT * FROM duckdb_settings()
-- expect: refused
SELECT path FROM duckdb_databases()
-- expect: refused
SELECT * FROM duckdb_databases
-- expect: refused
SELECT * FROM duckdb_tables
-- expect: refused
SELECT * FROM duckdb_tables, (WITH duckdb_tables AS (SELECT 1 AS a) SELECT a FROM duckdb_tables) AS x
-- expect: refused
WITH pragma_database_list AS (SELECT * FROM pragma_database_list) SELECT * FROM pragma_database_list
-- expect: refused
WITH "DuckDB_Logs" AS (SELECT 1 AS a) SELECT * FROM duckdb_logs
-- expect: refused
WITH a AS (SELECT * FROM pg_settings), pg_settings AS (SELECT 1 AS x) SELECT * FROM a
-- expect: refused
SELECT (WITH sqlite_master AS (SELECT 1 AS x) SELECT x FROM sqlite_master) FROM sqlite_master
-- expect: refused
SELECT * FROM pragma_database_list
-- expect: refused
SELECT * FROM sqlite_master
-- expect: refused
SELECT * FROM pg_catalog.pg_settings
-- expect: refused
SELECT * FROM system.information_schema.tables
-- expect: refused
SELECT * FROM temp.information_schema.tables
-- expect: refused
SELECT * FROM memory.meta.tables
-- expect: refused
SELECT * FROM meta.tables
-- expect: refused
SELECT * FROM system.main.duckdb_logs
-- expect: refused
SELECT * FROM duckdb_secrets()
-- expect: refused
SELECT * FROM duckdb_temporary_files()
-- expect: refused
SELECT * FROM duckdb_memory()
-- expect: refused
SELECT * FROM pragma_table_info('x')
-- expect: refused
SELECT * FROM pragma_storage_info('x')
-- expect: refused
SELECT current_setting('temp_directory')
-- expect: refused
SELECT system.main.current_setting('temp_directory')
-- expect: refused
SELECT current_query()
-- expect: refused
SELECT * FROM query('SELECT 1')
-- expect: refused
SELECT * FROM query('FROM duckdb_settings()')
-- expect: refused
SELECT * FROM query_table('duckdb_settings')
-- expect: refused
SELECT * FROM query_table(['a', 'b'])
-- expect: refused
SELECT json_serialize_sql('SELECT 1')
-- expect: refused
SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))
-- expect: refused
SELECT json_deserialize_sql('{{"error": false}}')
-- expect: refused
SELECT * FROM json_execute_serialized_sql('{{"error": false, "statements": []}}')
-- expect: refused
SELECT json_serialize_plan('SELECT 1')
-- expect: refused
SELECT nextval('seq')
-- expect: refused
SELECT setseed(0.5)
-- expect: refused
SELECT set_config('a', 'b', false)
-- expect: refused
SELECT pg_sleep(60)
-- expect: refused
SELECT sleep_ms(60000)
-- expect: refused
SELECT has_table_privilege('x', 'SELECT')
-- expect: refused
SELECT txid_current()
-- expect: refused
SELECT * FROM duckdb_functions()
-- expect: refused
SELECT * FROM test_all_types()
-- expect: refused
SELECT * FROM repeat('x', 10)
-- expect: refused
SELECT * FROM json_each('[1]')
-- expect: refused
SHOW TABLES
-- expect: refused
SHOW ALL TABLES
-- expect: refused
SHOW DATABASES
-- expect: refused
SHOW memory_limit
-- expect: refused
DESCRIBE
-- expect: refused
DESCRIBE duckdb_settings
-- expect: refused
SUMMARIZE duckdb_settings
-- expect: refused
SELECT * FROM (DESCRIBE duckdb_tables)
-- expect: refused
SELECT * FROM (SHOW TABLES)
-- expect: refused
SELECT name FROM sys.databases
-- expect: refused
SELECT * FROM master..sysobjects
-- expect: refused
SELECT * FROM "memory"."main"."space"
-- expect: refused
SELECT version()
-- expect: refused
SELECT current_user
-- expect: refused
SELECT session_user
-- expect: refused
SELECT user()
-- expect: refused
SELECT current_database()
-- expect: refused
SELECT current_schema()
-- expect: refused
SELECT CURRENT_CATALOG
