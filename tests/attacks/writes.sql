-- Writes where there should be none, and other writes than the one INSERT that is allowed.
-- expect: refused
UPDATE {A} SET Name = upper(Name)
-- expect: refused
/* x */ UPDATE {A} SET Name = 'x' WHERE 1 = 1
-- expect: refused
WITH k AS (DELETE FROM {Q} RETURNING *) SELECT * FROM k
-- expect: refused
WITH k AS (INSERT INTO {Q} (ACCOUNT_NAME) VALUES ('x') RETURNING *) SELECT * FROM k
-- expect: refused
WITH k AS (UPDATE {A} SET Name = 'x' RETURNING *) SELECT COUNT(*) FROM k
-- expect: refused
WITH k AS MATERIALIZED (INSERT INTO {Q} (ACCOUNT_NAME) VALUES ('x') RETURNING ID) SELECT 1
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) WITH k AS (DELETE FROM {Q} RETURNING ACCOUNT_NAME) SELECT ACCOUNT_NAME FROM k
-- expect: refused
SELECT * FROM (INSERT INTO {Q} (ACCOUNT_NAME) VALUES ('x') RETURNING *) t
-- expect: refused
SELECT (DELETE FROM {Q} RETURNING ID)
-- expect: refused
MERGE INTO {A} t USING {A} s ON t.Id = s.Id WHEN MATCHED THEN DELETE
-- expect: refused
MERGE INTO {Q} t USING {A} s ON t.ACCOUNT_NAME = s.Name WHEN NOT MATCHED THEN INSERT (ACCOUNT_NAME) VALUES (s.Name)
-- expect: refused
REPLACE INTO {Q} (ACCOUNT_NAME) VALUES ('x')
-- expect: refused
INSERT OR REPLACE INTO {Q} (ACCOUNT_NAME) VALUES ('x')
-- expect: refused
INSERT OR IGNORE INTO {Q} (ACCOUNT_NAME) VALUES ('x')
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) VALUES ('x') ON CONFLICT DO NOTHING
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) VALUES ('x') ON CONFLICT (ID) DO UPDATE SET ACCOUNT_NAME = 'y'
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) VALUES ('x') RETURNING *
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) OUTPUT inserted.ID VALUES ('x')
-- expect: refused
INSERT INTO {Q} DEFAULT VALUES
-- expect: refused
INSERT INTO {Q} BY NAME SELECT 'x' AS ACCOUNT_NAME
-- expect: refused
INSERT OVERWRITE {Q} VALUES ('x')
-- expect: refused
INSERT INTO {Q} (ID, ACCOUNT_NAME) VALUES (7, 'x')
-- expect: refused
INSERT INTO {Q} (NOPE) VALUES ('x')
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME, ACCOUNT_NAME) VALUES ('x', 'y')
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) VALUES ('x', 'y')
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) VALUES ('x'); DELETE FROM {A}
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) VALUES ('x'); INSERT INTO {Q} (ACCOUNT_NAME) VALUES ('y')
-- expect: refused
INSERT INTO REVIEW_QUEUE (ACCOUNT_NAME) VALUES ('x')
-- expect: refused
INSERT INTO memory.main.x VALUES (1)
-- expect: refused
INSERT INTO memory.meta.sys_tables VALUES ('a', 'b', 'c', 'd')
-- expect: refused
INSERT INTO INFORMATION_SCHEMA.TABLES VALUES ('a', 'b', 'c', 'd')
-- expect: refused
INSERT INTO sys_tables VALUES ('a', 'b', 'c', 'd')
-- expect: refused
INSERT INTO system.main.duckdb_settings VALUES ('a')
-- expect: refused
INSERT INTO temp.main.x VALUES (1)
-- expect: refused
INSERT INTO #tmp VALUES (1)
-- expect: refused
INSERT INTO 'file.csv' VALUES (1)
-- expect: refused
INSERT INTO read_csv('x') VALUES (1)
-- expect: refused
INSERT INTO (SELECT * FROM {Q}) VALUES (1)
-- expect: refused
INSERT INTO [Server].[Warehouse_System].[WH_DATA].[REVIEW_QUEUE] (ACCOUNT_NAME) VALUES ('x')
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) EXEC sp_help
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) SELECT error('stop')
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) SELECT ACCOUNT_NAME INTO x FROM {Q}
-- expect: refused
DELETE FROM {Q} USING {A} WHERE 1 = 1
-- expect: refused
DELETE FROM {Q} RETURNING *
-- expect: refused
DELETE TOP (1) FROM {Q}
-- expect: refused
DELETE FROM {Q} WHERE ID = 1; SELECT 1
-- expect: refused
DELETE {A}, {Q} FROM {A} JOIN {Q} ON 1 = 1
-- expect: refused
WITH k AS (SELECT 5 AS id) DELETE FROM {A} WHERE Id IN (SELECT id FROM k)
-- expect: refused
DELETE FROM memory.meta.tables
-- expect: refused
DELETE FROM INFORMATION_SCHEMA.TABLES
-- expect: refused
DELETE FROM (SELECT * FROM {Q})
-- expect: refused
SELECT * FROM {A} FOR UPDATE
-- expect: refused
INSERT INTO {Q} ("ACCOUNT_NAME"", ""ID") VALUES ('x')
-- expect: refused
INSERT INTO {Q} ([ACCOUNT_NAME) VALUES ('x'); --]) VALUES ('y')
-- expect: refused
INSERT INTO [Warehouse_System].[WH_DATA].[REVIEW_QUEUE"; DROP TABLE x; --] (ACCOUNT_NAME) VALUES ('x')
-- expect: refused
DELETE FROM {Q} WHERE (SELECT 1 FROM duckdb_settings()) = 1
-- expect: refused
DELETE FROM {Q} WHERE list_contains(list_value(1), current_setting('x'))
-- expect: refused
INSERT INTO {Q} (ACCOUNT_NAME) SELECT user
