-- Comments, quotes and characters, where two readers of a text may differ. What is allowed has its value.
-- expect: value [[1]]
-- a leading comment is not a write
SELECT 1
-- expect: value [[1]]
/* a note */ SELECT 1 -- and one at the end
-- expect: value [[1]]
SELECT /* /* nested */ */ 1
-- expect: value [[1]]
SELECT 1;
-- expect: value [[1]]
SELECT 1 -- ; DROP TABLE x
-- expect: value [["; DROP TABLE x --"]]
SELECT '; DROP TABLE x --' AS a
-- expect: value [["/* */ -- # '"]]
SELECT '/* */ -- # ''' AS a
-- expect: value [["DELETE FROM t", "read_csv('/etc/passwd')"]]
SELECT 'DELETE FROM t' AS a, 'read_csv(''/etc/passwd'')' AS b
-- expect: value [[1, 2]]
SELECT 1 AS [delete], 2 AS "drop table"
-- expect: value [["b", "DELETE", 1]]
SELECT replace('a', 'a', 'b') AS r, upper('delete') AS d, 1 AS [update]
-- expect: value [[3]]
WITH [drop] AS (SELECT 3 AS [insert into]) SELECT [insert into] FROM [drop]
-- expect: value [[3]]
WITH tables AS (SELECT 1 AS x UNION ALL SELECT 2), views AS (SELECT SUM(x) AS s FROM tables) SELECT s FROM views
-- expect: value [[6]]
WITH RECURSIVE n AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM n WHERE x < 3) SELECT SUM(x) FROM n
-- expect: value [["a\\'; DROP TABLE x; --"]]
SELECT 'a\''; DROP TABLE x; --' AS a
-- expect: refused
SELECT 'a\'; DROP TABLE x; --'
-- expect: refused
SELECT 1 /* not closed
-- expect: refused
SELECT 1 */ FROM x
-- expect: refused
/*
-- expect: refused
--
-- expect: refused
SELECT 1 /*! ; DROP TABLE x */; DROP TABLE x
-- expect: refused
SELECT 'not closed
-- expect: refused
SELECT "not closed
-- expect: refused
SELECT [not closed
-- expect: refused
SELECT $$ $$; DROP TABLE x
-- expect: refused
SELECT $a$ ; $a$ ; DROP TABLE x
-- expect: refused
SELECT 1 --
; DELETE FROM {Q}
-- expect: refused
SELECT 1 # 
; DELETE FROM {Q}
-- expect: refused
SELECT 1 /* */; /* */ DELETE FROM {Q}
-- expect: refused
DROP/**/TABLE/**/{A}
-- expect: refused
;DROP TABLE {A}
-- expect: refused
(DELETE FROM {A})
-- expect: refused
((SELECT 1); DROP TABLE {A})
-- expect: refused
GARBAGE IN
-- expect: refused
1
-- expect: refused
'SELECT 1'
-- expect: refused
SELECT
-- expect: refused
SELECT FROM WHERE
-- expect: refused
SELECT 1 FROM
-- expect: value [[1]]
WITH "/etc/passwd" AS (SELECT 1 AS x) SELECT * FROM "/etc/passwd"
-- expect: value [[1]]
WITH "Ä" AS (SELECT 1 AS a) SELECT * FROM "Ä"
-- expect: value [[1]]
SELECT [a]]b] FROM (SELECT 1 AS [a]]b]) t
-- expect: value [[1]]
SELECT "a""b" FROM (SELECT 1 AS "a""b") t
-- expect: value [["x"]]
SELECT 'x' AS [; DROP TABLE x --]
-- expect: value [[1]]
SELECT 1 AS "'; DELETE FROM x; --"
-- expect: value [[1, 2, 3]]
SELECT 1 AS "select", 2 AS [from], 3 AS `where`
-- expect: value [["'"]]
SELECT ''''
