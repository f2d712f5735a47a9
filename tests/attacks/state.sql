-- What would stay: settings, macros, temporary tables, prepared statements, transactions, catalogs in use.
-- expect: refused
SET enable_external_access = true
-- expect: refused
SET memory_limit = '1TB'
-- expect: refused
SET SESSION threads = 64
-- expect: refused
SET GLOBAL TimeZone = 'Asia/Tokyo'
-- expect: refused
SET lock_configuration = false
-- expect: refused
SET log_query_path = 'leak.log'
-- expect: refused
SET search_path = 'CRM_System.Salesforce'
-- expect: refused
SET schema = 'CRM_System.Salesforce'
-- expect: refused
SET VARIABLE x = 1
-- expect: refused
RESET memory_limit
-- expect: refused
RESET ALL
-- expect: refused
PRAGMA enable_profiling
-- expect: refused
PRAGMA database_list
-- expect: refused
PRAGMA memory_limit='1TB'
-- expect: refused
PRAGMA enable_logging
-- expect: refused
CALL enable_logging()
-- expect: refused
CALL pragma_version()
-- expect: refused
USE CRM_System
-- expect: refused
USE CRM_System.Salesforce
-- expect: refused
CHECKPOINT
-- expect: refused
FORCE CHECKPOINT CRM_System
-- expect: refused
VACUUM
-- expect: refused
ANALYZE
-- expect: refused
BEGIN
-- expect: refused
BEGIN TRAN
-- expect: refused
START TRANSACTION
-- expect: refused
COMMIT
-- expect: refused
ROLLBACK
-- expect: refused
END
-- expect: refused
ROLLBACK; INSERT INTO {Q} (ACCOUNT_NAME) VALUES ('x')
-- expect: refused
BEGIN; SELECT 1
-- expect: refused
SELECT 1; SELECT 2
-- expect: refused
SELECT 1;;; DELETE FROM {Q}
-- expect: refused
PREPARE p AS SELECT 1
-- expect: refused
EXECUTE p
-- expect: refused
EXECUTE p(1)
-- expect: refused
DEALLOCATE p
-- expect: refused
EXPLAIN SELECT 1
-- expect: refused
EXPLAIN ANALYZE DELETE FROM {Q}
-- expect: refused
EXPLAIN ANALYZE INSERT INTO {Q} (ACCOUNT_NAME) VALUES ('x')
-- expect: refused
CREATE MACRO main.sum(x) AS 42
-- expect: refused
CREATE OR REPLACE MACRO isnumeric(x) AS 1
-- expect: refused
CREATE MACRO "+"(a, b) AS 1
-- expect: refused
CREATE TEMP MACRO f(x) AS x
-- expect: refused
CREATE FUNCTION f(x) AS x
-- expect: refused
CREATE TEMP TABLE Account AS SELECT 1 AS id
-- expect: refused
CREATE TABLE [Warehouse_System].[WH_DATA].[X] (a INT)
-- expect: refused
CREATE OR REPLACE VIEW [CRM_System].[Salesforce].[Account] AS SELECT 1 AS id
-- expect: refused
CREATE SCHEMA CRM_System.s
-- expect: refused
CREATE TYPE t AS ENUM ('a')
-- expect: refused
CREATE SEQUENCE s
-- expect: refused
CREATE INDEX i ON {Q} (ACCOUNT_NAME)
-- expect: refused
CREATE TRIGGER t AFTER INSERT ON {Q} FOR EACH ROW SELECT 1
-- expect: refused
DROP TABLE {A}
-- expect: refused
DROP SCHEMA CRM_System.Salesforce CASCADE
-- expect: refused
ALTER TABLE {Q} ADD COLUMN x INT
-- expect: refused
ALTER TABLE {A} RENAME TO B
-- expect: refused
TRUNCATE TABLE {A}
-- expect: refused
COMMENT ON TABLE {A} IS 'x'
-- expect: refused
SELECT * INTO #tmp FROM {A}
-- expect: refused
SELECT * INTO Copied FROM {A}
-- expect: refused
SELECT * INTO OUTFILE 'x' FROM {A}
-- expect: refused
PIVOT {A} ON Industry USING COUNT(*)
-- expect: refused
UNPIVOT {A} ON Name INTO NAME n VALUE v
-- expect: refused
LOCK TABLE {A}
-- expect: refused
GRANT SELECT ON {A} TO PUBLIC
