"""What SQL means at the embedded endpoint: values over the real data, and what never runs."""

from __future__ import annotations

import csv
import datetime as dt
import logging
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
import sqlglot
from sqlglot import exp

from pytest_ctxbench.dataset import TABLES as FILES
from pytest_ctxbench.local.dialect import MAX_STATEMENT_CHARS, SqlError
from pytest_ctxbench.local.engine import Engine, EngineError, EngineLimits, Running, clean, json_value
from pytest_ctxbench.local.schema import TABLES
from pytest_ctxbench.local.sql import Translator
from pytest_ctxbench.local.template import build_template
from pytest_ctxbench.local.trees import Kinds, find, find_all, nodes

DATA = Path(__file__).parents[1] / "data"
ACCOUNT = "[CRM_System].[Salesforce].[Account]"
CONTACT = "[CRM_System].[Salesforce].[Contact]"
DIM = "[Warehouse_System].[WH_DATA].[DIM_ACCOUNT]"
EVENTS = "[Warehouse_System].[WH_DATA].[TELEMETRY_EVENTS]"
QUEUE = "[Warehouse_System].[WH_DATA].[REVIEW_QUEUE]"
COMPANY = "[ITSM_System].[ServiceNow].[u_bm_company]"
INCIDENT = "[ITSM_System].[ServiceNow].[u_bm_incident]"
NAMES = {"ACCOUNT": ACCOUNT, "CONTACT": CONTACT, "DIM": DIM, "EVENTS": EVENTS, "QUEUE": QUEUE, "COMPANY": COMPANY,
         "INCIDENT": INCIDENT}  # fmt: skip
EVERYTHING = ("select", "insert", "delete")


def rows_of(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


@pytest.fixture(scope="session")
def accounts() -> list[dict[str, str]]:
    return rows_of("crm_accounts.csv")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    headers = {}
    for name in FILES:
        with (DATA / name).open(encoding="utf-8", newline="") as handle:
            headers[name] = next(csv.reader(handle))
    build_template(DATA, folder, headers)
    return folder


class Database:
    """One engine, asked as the server asks it."""

    def __init__(self, folder: Path, *, read_only: bool) -> None:
        logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
        self.engine = Engine(EngineLimits(statement_timeout_s=20))
        self.engine.open(folder, read_only=read_only)

    def run(self, sql: str, *allowed: str, **more: Any) -> dict[str, Any]:
        order = {"sql": sql, "allowed": allowed or ("select",), "max_rows": 30_000, "max_bytes": 10**7, **more}
        return self.engine.run(Running(), order, lambda: None)

    def rows(self, sql: str, **more: Any) -> list[list[Any]]:
        return self.run(sql.format(**NAMES), **more)["rows"]

    def error(self, sql: str, *allowed: str, **more: Any) -> str:
        with pytest.raises(EngineError) as caught:
            self.run(sql, *(allowed or EVERYTHING), **more)
        return str(caught.value)


@pytest.fixture(scope="module")
def database(template: Path) -> Iterator[Database]:
    made = Database(template, read_only=True)
    yield made
    made.engine.close()


@pytest.fixture
def writable(template: Path, tmp_path: Path) -> Iterator[Database]:
    for path in template.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    made = Database(tmp_path, read_only=False)
    yield made
    made.engine.close()


def test_a_long_statement_is_parsed_by_its_execution_alone(database: Database) -> None:
    sql = "SELECT '" + "x" * 20_000 + "' AS a"
    engine = database.engine
    with duckdb.connect() as closed:
        pass
    with pytest.raises(duckdb.ConnectionException):  # what parses asks the connection
        engine._parse(closed, "SELECT 'nobody has asked this'")
    assert engine._parse(closed, sql) == sql
    assert database.rows(sql) == [["x" * 20_000]]
    assert sql not in engine._parsed


# --- the tables -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [t for t in TABLES if t.file], ids=lambda t: t.name)
def test_every_value_of_a_file_is_in_its_table(database: Database, table: Any) -> None:
    expected = rows_of(table.file)
    chosen = [c for c in table.columns if c.source is not None]
    names = ", ".join(f"[{c.name}]" for c in chosen)
    found = database.rows(f"SELECT {names} FROM {table.shown}", max_bytes=10**8)
    assert len(found) == len(expected)
    kinds = {c.name: c.sql_type for c in chosen}

    def shown(value: Any, kind: str) -> str:
        if value is None:
            return ""
        return str(value).replace("T", " ") if kind == "TIMESTAMP" else str(value)

    def written(value: str, kind: str) -> str:
        if kind == "TIMESTAMP" and value:
            return dt.datetime.fromisoformat(value).isoformat(" ")
        return value

    theirs = Counter(tuple(written(row[c.source], kinds[c.name]) for c in chosen) for row in expected)
    ours = Counter(tuple(shown(v, kinds[c.name]) for v, c in zip(row, chosen, strict=True)) for row in found)
    assert ours == theirs


def test_the_crms_own_id_is_an_18_character_key_of_no_other_system(database: Database) -> None:
    (found,) = database.rows(
        "SELECT COUNT(*), COUNT(DISTINCT Id), MIN(LEN(Id)), MAX(LEN(Id)), "
        "SUM(CASE WHEN Id = Ext_Account_Id__c THEN 1 ELSE 0 END) FROM {ACCOUNT}"
    )
    assert found == [1200, 1200, 18, 18, 0]
    assert database.rows("SELECT COUNT(*) FROM {ACCOUNT} a JOIN {DIM} d ON d.SFDC_ACCOUNT_ID = a.Id") == [[0]]


def test_the_three_systems_join(database: Database) -> None:
    assert database.rows(
        "SELECT COUNT(*) FROM {ACCOUNT} a JOIN {DIM} d ON d.SFDC_ACCOUNT_ID = a.Ext_Account_Id__c "
        "JOIN {COMPANY} c ON c.u_name = a.Name"
    ) == [[1200]]
    assert database.rows("SELECT COUNT(*) FROM {CONTACT} c JOIN {ACCOUNT} a ON a.Ext_Account_Id__c = c.AccountId") == [
        [2376]
    ]
    assert database.rows("SELECT COUNT(*) FROM {INCIDENT} i JOIN {COMPANY} c ON c.u_name = i.u_company") == [[6865]]
    assert database.rows("SELECT COUNT(*) FROM {EVENTS} e JOIN {DIM} d ON d.ACCOUNT_SK = e.ACCOUNT_SK") == [[21003]]


def test_the_metadata_tables_show_the_seven_tables_and_nothing_else(database: Database) -> None:
    expected = sorted([*t.path] for t in TABLES)
    query = "SELECT TABLE_CATALOG, TABLE_SCHEMA, TABLE_NAME FROM INFORMATION_SCHEMA.TABLES ORDER BY 1, 2, 3"
    assert database.rows(query) == expected
    assert database.rows("SELECT CatalogName, SchemaName, TableName FROM sys_tables ORDER BY 1, 2, 3") == expected
    assert database.rows(
        "SELECT COLUMN_NAME FROM [Warehouse_System].INFORMATION_SCHEMA.COLUMNS c WHERE c.TABLE_NAME = 'REVIEW_QUEUE' "
        "ORDER BY ORDINAL_POSITION"
    ) == [["ID"], ["ACCOUNT_NAME"], ["REASON"], ["QUEUED_AT"]]
    assert database.rows("SELECT COUNT(*) FROM crm_system.information_schema.tables") == [[2]]
    assert "Catalog 'nope' does not exist" in database.error("SELECT * FROM nope.information_schema.tables")


# --- what models write, over literals -------------------------------------------------------------------------------

VALUES: list[tuple[str, Any]] = [
    # the frozen clock
    ("GETDATE()", "2026-07-16 00:00:00"),
    ("CURRENT_TIMESTAMP", "2026-07-16 00:00:00"),
    ("SYSDATETIME()", "2026-07-16 00:00:00"),
    ("GETUTCDATE()", "2026-07-16 00:00:00"),
    ("NOW()", "2026-07-16 00:00:00"),
    ("CURRENT_DATE", "2026-07-16"),
    ("TODAY()", "2026-07-16"),
    ("CURDATE()", "2026-07-16"),
    ("CAST(GETDATE() AS DATE)", "2026-07-16"),
    ("GETDATE() - 90", "2026-04-17 00:00:00"),
    ("GETDATE() + 1", "2026-07-17 00:00:00"),
    ("CURRENT_DATE - 90", "2026-04-17"),
    ("CURRENT_DATE - INTERVAL '90' DAY", "2026-04-17 00:00:00"),
    ("CURRENT_DATE - INTERVAL 3 MONTH", "2026-04-16 00:00:00"),
    ("CURRENT_DATE - INTERVAL '90 days'", "2026-04-17 00:00:00"),
    # differences
    ("DATEDIFF(day, '2026-07-16', '2026-10-14')", 90),
    ("DATEDIFF(DAY, GETDATE(), '2026-07-15')", -1),
    ("DATEDIFF(dd, '2026-07-16', CAST('2026-07-17' AS DATE))", 1),
    ("DATEDIFF('day', '2026-07-16', '2026-07-20')", 4),
    ("DATEDIFF('2026-07-20', '2026-07-16')", 4),
    ("DATEDIFF(month, '2026-01-31', '2026-02-01')", 1),
    ("DATEDIFF(mm, '2026-01-01', '2026-01-31')", 0),
    ("DATEDIFF(year, '2025-12-31', '2026-01-01')", 1),
    ("DATEDIFF(hour, '2026-07-16 01:00:00', '2026-07-16 03:30:00')", 2),
    ("DATEDIFF(day, '2026-07-15 23:59:00', '2026-07-16 00:01:00')", 1),
    ("DATE_DIFF('day', DATE '2026-07-16', DATE '2026-07-20')", 4),
    ("DATE_DIFF(DATE '2026-07-20', DATE '2026-07-16', DAY)", 4),
    ("TIMESTAMPDIFF(DAY, '2026-07-16', '2026-07-20')", 4),
    ("DATEDIFF(day, 0, '1900-01-03')", 2),
    ("DATE '2026-07-20' - DATE '2026-07-16'", 4),
    # additions
    ("DATEADD(day, -90, '2026-07-16')", "2026-04-17 00:00:00"),
    ("DATEADD(day, -90, GETDATE())", "2026-04-17 00:00:00"),
    ("DATEADD(month, 1, '2026-01-31')", "2026-02-28 00:00:00"),
    ("DATEADD(quarter, -1, '2026-07-16')", "2026-04-16 00:00:00"),
    ("DATEADD(year, 1, CAST('2026-07-16' AS DATE))", "2027-07-16 00:00:00"),
    ("DATEADD(hour, 5, '2026-07-16 01:00:00')", "2026-07-16 06:00:00"),
    ("DATEADD('week', 1, '2026-07-16')", "2026-07-23 00:00:00"),
    ("DATE_ADD('2026-07-16', INTERVAL 3 DAY)", "2026-07-19 00:00:00"),
    ("DATE_SUB('2026-07-16', INTERVAL 3 DAY)", "2026-07-13 00:00:00"),
    ("CAST(DATEADD(day, DATEDIFF(day, 0, GETDATE()), 0) AS DATE)", "2026-07-16"),
    # parts
    ("DATEPART(year, '2026-07-16')", 2026),
    ("DATEPART(quarter, CAST('2026-07-16' AS DATE))", 3),
    ("DATEPART(weekday, '2026-07-16')", 5),
    ("DATENAME(month, '2026-07-16')", "July"),
    ("YEAR('2026-07-16') * 10000 + MONTH('2026-07-16') * 100 + DAY('2026-07-16')", 20260716),
    ("EXTRACT(MONTH FROM CURRENT_DATE)", 7),
    ("EOMONTH('2026-02-03')", "2026-02-28"),
    ("EOMONTH('2026-01-31', 1)", "2026-02-28"),
    ("DATEFROMPARTS(2026, 7, 16)", "2026-07-16"),
    ("CAST(DATETRUNC(month, DATE '2026-07-16') AS DATE)", "2026-07-01"),
    ("CAST(date_trunc('month', TIMESTAMP '2026-07-16 10:00:00') AS DATE)", "2026-07-01"),
    ("JULIANDAY('2026-07-16') - JULIANDAY('2026-07-01')", 15.0),
    # conversions
    ("CONVERT(VARCHAR(10), GETDATE(), 120)", "2026-07-16"),
    ("CONVERT(VARCHAR, CAST('2026-07-16' AS DATE), 103)", "16/07/2026"),
    ("CONVERT(CHAR(8), CAST('2026-07-16' AS DATE), 112)", "20260716"),
    ("CONVERT(DATE, '2026-07-16')", "2026-07-16"),
    ("CONVERT(DATE, '16/07/2026', 103)", "2026-07-16"),
    ("CONVERT(INT, '42')", 42),
    ("CAST('20260716' AS DATE)", "2026-07-16"),
    ("CAST('2026-07-16T10:11:12' AS DATETIME2)", "2026-07-16 10:11:12"),
    ("CAST('2026-07-16 10:11:12' AS TIMESTAMP)", "2026-07-16 10:11:12"),
    ("CAST('abcdef' AS VARCHAR(3))", "abc"),
    ("CAST(12 AS NVARCHAR(MAX))", "12"),
    ("CAST(0.1 AS FLOAT) + CAST(0.2 AS FLOAT)", 0.30000000000000004),
    ("CAST(2.7 AS INT)", 2),
    ("CAST(-2.7 AS INT)", -2),
    ("CAST('3' AS INT) + 1", 4),
    ("TRY_CAST('x' AS INT)", None),
    ("TRY_CONVERT(DATE, 'nope')", None),
    ("CAST(1 AS BIT)", True),
    ("CAST(1.999 AS DECIMAL(10, 2))", 2),
    ("CAST(1.995 AS MONEY)", 1.995),
    ("'2026-07-16'::date", "2026-07-16"),
    ("TO_DATE('16.07.2026', 'DD.MM.YYYY')", "2026-07-16"),
    ("TO_CHAR(DATE '2026-07-16', 'YYYY-MM')", "2026-07"),
    ("FORMAT(1234.567, 'N2')", "1,234.57"),
    ("FORMAT(1234.567, 'C')", "$1,234.57"),
    ("FORMAT(0.256, 'P1')", "25.6 %"),
    ("FORMAT(1234.5, '#,##0.00')", "1,234.50"),
    ("FORMAT(CAST('2026-07-16' AS DATE), 'yyyy-MM-dd')", "2026-07-16"),
    # numbers
    ("7 / 2", 3),
    ("-7 / 2", -3),
    ("7 / 2.0", 3.5),
    ("1.0 * 7 / 2", 3.5),
    ("7 % 3", 1),
    ("ROUND(2.5, 0)", 3),
    ("ROUND(2.567, 1)", 2.6),
    ("CEILING(-1.5)", -1),
    ("POWER(2, 3)", 8.0),
    ("LOG10(1000)", 3.0),
    ("GREATEST(1, 3, 2)", 3),
    ("CHOOSE(2, 'a', 'b')", "b"),
    # texts
    ("'a' + 'b'", "ab"),
    ("'a' || 'b'", "ab"),
    ("'a' + CAST(1 AS VARCHAR(5)) + UPPER('x') + 'z'", "a1Xz"),
    ("CONCAT('a', NULL, 1)", "a1"),
    ("CONCAT_WS('-', 'a', NULL, 'b')", "a-b"),
    ("'a' + NULL", None),
    ("ISNULL(NULL, 'x')", "x"),
    ("IFNULL(NULL, 1)", 1),
    ("NVL(NULL, 2)", 2),
    ("COALESCE(NULL, NULL, 3)", 3),
    ("NULLIF(1, 1)", None),
    ("IIF(1 > 2, 'y', 'n')", "n"),
    ("LEN('abc')", 3),
    ("CHARINDEX('b', 'abcb')", 2),
    ("CHARINDEX('b', 'abcb', 3)", 4),
    ("PATINDEX('%c%', 'abc')", 3),
    ("SUBSTRING('abcdef', 2, 3)", "bcd"),
    ("LEFT('abc', 2) + RIGHT('abc', 1)", "abc"),
    ("LTRIM('  a') + RTRIM('b  ') + TRIM('  c  ')", "abc"),
    ("REPLACE('abc', 'b', 'x')", "axc"),
    ("STUFF('abcdef', 2, 3, 'X')", "aXef"),
    ("REPLICATE('x', 3)", "xxx"),
    ("SPACE(2) + 'x'", "  x"),
    ("QUOTENAME('a]b')", "[a]]b]"),
    ("STR(12.345, 6, 1)", "  12.3"),
    ("N'ünï'", "ünï"),
    ("'it''s'", "it's"),
    ("CASE WHEN 'abc' LIKE '[a-c]%' AND 'abc' NOT LIKE '[^a]%' THEN 1 ELSE 0 END", 1),
    ("CASE WHEN 'a_b' LIKE '%[_]%' THEN 1 ELSE 0 END", 1),
    ("CASE WHEN 'ABC' LIKE 'abc' THEN 1 ELSE 0 END", 0),
    ("CASE WHEN 'ABC' ILIKE 'abc' THEN 1 ELSE 0 END", 1),
    ("ISNUMERIC('12.5')", 1),
    ("REGEXP_REPLACE('aBc', 'b', 'x', 'i')", "axc"),
    ("REGEXP_REPLACE('abc', 'b', 'x')", "axc"),
    ("CASE WHEN 'abc' ~ 'b' AND 'abc' !~ '^b' THEN 1 ELSE 0 END", 1),
    ("~1 & 3", 2),
    ("NCHAR(233)", "é"),
    ("CONVERT(VARCHAR(7), GETDATE(), 120) + FORMAT(7, '00') + STR(1, 2)", "2026-0707 1"),
    ("TO_CHAR(GETDATE(), 'YYYY') + list_aggregate(list_value('a', 'b'), 'string_agg', '')", "2026ab"),
]


@pytest.mark.parametrize(("expression", "value"), VALUES, ids=[v[0] for v in VALUES])
def test_value(database: Database, expression: str, value: Any) -> None:
    ((found,),) = database.rows(f"SELECT {expression} AS x")
    assert found == value
    assert type(found) is type(value)


# --- what models write, over the data -------------------------------------------------------------------------------


def test_every_quote_and_both_limits(database: Database, accounts: list[dict[str, str]]) -> None:
    expected = [[name] for name in sorted(a["Name"] for a in accounts)[:3]]
    for query in (
        "SELECT TOP 3 [Name] FROM [CRM_System].[Salesforce].[Account] ORDER BY [Name]",
        "SELECT TOP (3) Name FROM CRM_System.Salesforce.Account ORDER BY Name",
        'SELECT "Name" FROM "CRM_System"."Salesforce"."Account" ORDER BY "Name" LIMIT 3',
        "SELECT `Name` FROM `CRM_System`.`Salesforce`.`Account` ORDER BY `Name` LIMIT 3;",
        "select name from crm_system.salesforce.account order by name offset 0 rows fetch next 3 rows only",
        "SELECT [Account].[Name] FROM [CRM_System].[Salesforce].[Account] WITH (NOLOCK) ORDER BY 1 LIMIT 3",
        "SELECT TOP 3 [CRM_System].[Salesforce].[Account].[Name] FROM [CRM_System].[Salesforce].[Account] ORDER BY 1",
        "-- first\nSELECT TOP 3 a.Name /* the name */ FROM CRM_System.Salesforce.Account AS a ORDER BY a.Name",
        "WITH x AS (SELECT Name FROM CRM_System.Salesforce.Account) SELECT TOP 3 Name FROM x ORDER BY Name",
        "SELECT Name FROM (SELECT Name, ROW_NUMBER() OVER (ORDER BY Name) r FROM CRM_System.Salesforce.Account) t "
        "WHERE r <= 3 ORDER BY r",
    ):
        assert database.rows(query) == expected, query


def test_paging(database: Database, accounts: list[dict[str, str]]) -> None:
    names = sorted((a["Name"] for a in accounts), reverse=True)
    assert database.rows("SELECT Name FROM {ACCOUNT} ORDER BY Name DESC OFFSET 10 ROWS FETCH NEXT 5 ROWS ONLY") == [
        [n] for n in names[10:15]
    ]
    assert database.rows("SELECT Name FROM {ACCOUNT} ORDER BY Name DESC LIMIT 5 OFFSET 10") == [
        [n] for n in names[10:15]
    ]


def test_the_days_to_renewal_and_a_score_as_a_model_writes_them(
    database: Database, accounts: list[dict[str, str]]
) -> None:
    today = dt.date(2026, 7, 16)
    days = {a["Name"]: (dt.date.fromisoformat(a["ContractEndDate__c"]) - today).days for a in accounts}
    found = dict(
        database.rows("SELECT Name, DATEDIFF(day, CAST(GETDATE() AS DATE), ContractEndDate__c) AS d FROM {ACCOUNT}")
    )
    assert found == days
    urgent: Counter[str] = Counter(
        i["company_name"]
        for i in rows_of("itsm_incidents.csv")
        if i["state"] == "Open" and i["priority"] in ("Critical", "High")
    )
    query = """
        WITH urgent AS (
          SELECT [u_company], COUNT(*) AS n FROM {INCIDENT}
          WHERE [u_state] = 'Open' AND [u_priority] IN ('Critical', 'High') GROUP BY [u_company]
        )
        SELECT a.[Name], COALESCE(u.n, 0) AS n,
               CASE WHEN DATEDIFF(day, '2026-07-16', a.[ContractEndDate__c]) <= 30 THEN 25
                    WHEN DATEDIFF(day, '2026-07-16', a.[ContractEndDate__c]) <= 90 THEN 10 ELSE 0 END
               + CASE WHEN COALESCE(u.n, 0) * 5 > 25 THEN 25 ELSE COALESCE(u.n, 0) * 5 END AS penalty
        FROM {ACCOUNT} a LEFT JOIN urgent u ON u.[u_company] = a.[Name]
        WHERE a.[CustomerPriority__c] = 'High'
    """
    expected = {
        a["Name"]: [
            urgent[a["Name"]],
            (25 if days[a["Name"]] <= 30 else 10 if days[a["Name"]] <= 90 else 0) + min(25, 5 * urgent[a["Name"]]),
        ]
        for a in accounts
        if a["CustomerPriority__c"] == "High"
    }
    assert {row[0]: row[1:] for row in database.rows(query)} == expected


def test_windows_of_usage_across_two_catalogs(database: Database, accounts: list[dict[str, str]]) -> None:
    sessions: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for event in rows_of("warehouse_telemetry_events.csv"):
        day = event["EVENT_TIMESTAMP"][:10]
        if "2026-04-17" <= day <= "2026-07-16":
            sessions[event["ACCOUNT_SK"]][0] += int(event["SESSION_COUNT"])
        elif "2026-01-17" <= day <= "2026-04-16":
            sessions[event["ACCOUNT_SK"]][1] += int(event["SESSION_COUNT"])
    keys = {d["SFDC_ACCOUNT_ID"]: d["ACCOUNT_SK"] for d in rows_of("warehouse_dim_account.csv")}
    expected = {a["Name"]: sessions[keys[a["Id"]]] for a in accounts}
    for condition in (
        ("CAST(EVENT_TIMESTAMP AS DATE) BETWEEN '2026-04-17' AND '2026-07-16'",
         "CAST(EVENT_TIMESTAMP AS DATE) BETWEEN '2026-01-17' AND '2026-04-16'"),
        ("EVENT_TIMESTAMP >= '2026-04-17' AND EVENT_TIMESTAMP < DATEADD(day, 1, '2026-07-16')",
         "EVENT_TIMESTAMP >= '2026-01-17' AND EVENT_TIMESTAMP < '2026-04-17'"),
        ("DATEDIFF(day, EVENT_TIMESTAMP, '2026-07-16') BETWEEN 0 AND 90",
         "DATEDIFF(day, EVENT_TIMESTAMP, '2026-07-16') BETWEEN 91 AND 180"),
        ("CONVERT(DATE, EVENT_TIMESTAMP) >= GETDATE() - 90 AND CONVERT(DATE, EVENT_TIMESTAMP) <= GETDATE()",
         "EVENT_TIMESTAMP::date >= DATE '2026-01-17' AND EVENT_TIMESTAMP::date < CURRENT_DATE - INTERVAL '90 days'"),
    ):  # fmt: skip
        query = f"""
            SELECT a.Name, ISNULL(t.cur, 0), ISNULL(t.prev, 0)
            FROM {ACCOUNT} a JOIN {DIM} d ON d.SFDC_ACCOUNT_ID = a.Ext_Account_Id__c
            LEFT JOIN (SELECT ACCOUNT_SK, SUM(CASE WHEN {condition[0]} THEN SESSION_COUNT ELSE 0 END) AS cur,
                              SUM(SESSION_COUNT) FILTER (WHERE {condition[1]}) AS prev
                       FROM {EVENTS} GROUP BY ACCOUNT_SK) t ON t.ACCOUNT_SK = d.ACCOUNT_SK
        """
        assert {row[0]: row[1:] for row in database.rows(query)} == expected, condition


def test_groups_windows_and_sets(database: Database, accounts: list[dict[str, str]]) -> None:
    counts = Counter(a["SLA__c"] for a in accounts)
    assert database.rows(
        "SELECT SLA__c, COUNT(*) AS n FROM {ACCOUNT} GROUP BY SLA__c HAVING COUNT(*) > 200 ORDER BY n DESC"
    ) == [[k, n] for k, n in counts.most_common() if n > 200]
    best = {s: max(float(a["AnnualContractValue__c"]) for a in accounts if a["SLA__c"] == s) for s in counts}
    found = database.rows(
        "SELECT SLA__c, AnnualContractValue__c FROM (SELECT SLA__c, AnnualContractValue__c, RANK() OVER "
        "(PARTITION BY SLA__c ORDER BY AnnualContractValue__c DESC) AS r FROM {ACCOUNT}) x WHERE r = 1"
    )
    assert {row[0]: float(row[1]) for row in found} == best
    assert database.rows("SELECT Name FROM {ACCOUNT} EXCEPT SELECT u_name FROM {COMPANY}") == []
    assert database.rows("SELECT 2 AS a UNION ALL SELECT 1 UNION SELECT 2 ORDER BY a") == [[1], [2]]
    assert database.rows(
        "SELECT STRING_AGG(s, ', ') WITHIN GROUP (ORDER BY s DESC) FROM (SELECT DISTINCT SLA__c AS s FROM {ACCOUNT}) x"
    ) == [[", ".join(sorted(counts, reverse=True))]]
    pivoted = database.rows(
        "SELECT * FROM (SELECT SLA__c, Tier__c, Id FROM {ACCOUNT}) s "
        "PIVOT (COUNT(Id) FOR Tier__c IN ([Enterprise], [SMB])) p"
    )
    both = Counter((a["SLA__c"], a["Tier__c"]) for a in accounts)
    assert {r[0]: r[1:] for r in pivoted} == {s: [both[s, "Enterprise"], both[s, "SMB"]] for s in counts}


def test_cross_and_outer_apply(database: Database, accounts: list[dict[str, str]]) -> None:
    newest: dict[str, str] = {}
    for incident in rows_of("itsm_incidents.csv"):
        name = incident["company_name"]
        newest[name] = max(newest.get(name, ""), dt.datetime.fromisoformat(incident["opened_at"]).isoformat(" "))
    query = (
        "SELECT a.Name, i.at FROM {ACCOUNT} a %s APPLY (SELECT TOP 1 u_opened_at AS at FROM {INCIDENT} x "
        "WHERE x.u_company = a.Name ORDER BY u_opened_at DESC) i"
    )
    assert dict(database.rows(query % "CROSS")) == newest
    assert dict(database.rows(query % "OUTER")) == {a["Name"]: newest.get(a["Name"]) for a in accounts}


def test_texts_are_joined_by_plus_wherever_their_type_is_known(
    database: Database, accounts: list[dict[str, str]]
) -> None:
    expected = sorted(f"{a['Name']} ({a['SLA__c']})" for a in accounts)
    for query in (
        "SELECT Name + ' (' + SLA__c + ')' FROM {ACCOUNT}",
        "SELECT x.n + x.s FROM (SELECT Name AS n, ' (' + SLA__c + ')' AS s FROM {ACCOUNT}) x",
        "WITH x AS (SELECT a.[Name] AS n, a.[SLA__c] AS s FROM {ACCOUNT} a) SELECT n + ' (' + s + ')' FROM x",
    ):
        assert sorted(r[0] for r in database.rows(query)) == expected, query
    assert database.rows("SELECT NumberOfEmployees + 1 - 1 = NumberOfEmployees FROM {ACCOUNT} LIMIT 1") == [[True]]


def test_null_sorts_lowest(database: Database) -> None:
    assert database.rows("SELECT TOP 1 u_resolved_at FROM {INCIDENT} ORDER BY u_resolved_at") == [[None]]
    ((last,),) = database.rows("SELECT TOP 1 u_resolved_at FROM {INCIDENT} ORDER BY u_resolved_at DESC")
    assert last is not None


def test_describe_and_summarize(database: Database) -> None:
    assert [r[0] for r in database.rows("DESCRIBE {QUEUE}")] == ["ID", "ACCOUNT_NAME", "REASON", "QUEUED_AT"]
    assert len(database.rows('SUMMARIZE "CRM_System"."Salesforce"."Account"')) == 18
    assert len(database.rows("SUMMARIZE {ACCOUNT}")) == 18
    assert len(database.rows("SUMMARIZE SELECT Name, Id FROM {ACCOUNT}")) == 2
    assert len(database.rows("SELECT * FROM (SUMMARIZE {ACCOUNT}) t")) == 18


@pytest.mark.parametrize(
    "query",
    ["DESCRIBE {QUEUE}", "DESC {ACCOUNT}", "DESCRIBE SELECT * FROM {ACCOUNT}", "SELECT * FROM (DESCRIBE {ACCOUNT}) t",
     "WITH d AS (DESCRIBE {ACCOUNT}) SELECT * FROM d", "SELECT * FROM (DESCRIBE SELECT * FROM {QUEUE}) t",
     "DESCRIBE (DESCRIBE {ACCOUNT})"],
)  # fmt: skip
def test_how_the_system_fills_its_own_columns_is_not_shown(database: Database, query: str) -> None:
    found = database.rows(query)
    assert found
    assert "nextval" not in str(found)
    assert "record" not in str(found)


def test_group_by_and_order_by_all(database: Database) -> None:
    found = database.rows("SELECT Industry, COUNT(*) AS n FROM {ACCOUNT} GROUP BY ALL ORDER BY ALL")
    assert found == sorted(found)
    assert len(found) > 5


def test_a_query_may_begin_with_from(database: Database) -> None:
    assert len(database.rows("FROM {ACCOUNT} LIMIT 2")) == 2


def test_unnamed_columns_are_called_as_they_were_asked_for(database: Database) -> None:
    names = [
        c["name"]
        for c in database.run(f"SELECT COUNT(*), MAX(Name), Name + 'x' n FROM {ACCOUNT} GROUP BY Name")["columns"]
    ]
    assert names == ["COUNT(*)", "MAX(Name)", "n"]


def test_an_unnamed_column_may_be_of_a_function_that_t_sql_does_not_have(database: Database) -> None:
    assert database.run("SELECT SPLIT_PART('a/b', '/', 2)")["rows"] == [["b"]]
    assert database.run("SELECT SPLIT_PART('a/b', '/', 2)")["columns"][0]["name"] == "SPLIT_PART('a/b', '/', 2)"


def test_default_catalog_and_schema(database: Database) -> None:
    defaults = {"catalog": "CRM_System", "schema": "Salesforce"}
    assert database.rows("SELECT COUNT(*) FROM Account", **defaults) == [[1200]]
    assert database.rows("SELECT COUNT(*) FROM Salesforce.Account", catalog="crm_system") == [[1200]]
    assert database.rows("SELECT COUNT(*) FROM {DIM}", **defaults) == [[1200]]
    message = database.error("SELECT * FROM Account")
    assert "not fully qualified" in message
    assert "[CRM_System].[Salesforce].[Account]" in message


def test_parameters_are_values_and_nothing_else(database: Database, accounts: list[dict[str, str]]) -> None:
    name = accounts[0]["Name"]
    query = f"SELECT COUNT(*) FROM {ACCOUNT} WHERE Name = @name"
    assert database.rows(query, parameters={"@name": name}) == [[1]]
    assert database.rows(query, parameters={"name": {"dataType": "VARCHAR", "value": name}}) == [[1]]
    assert database.rows(query, parameters={"name": "x' OR 1=1 --"}) == [[0]]
    assert database.rows("SELECT @a, @b, @c, @d", parameters={"a": -1, "b": 2.5, "c": None, "d": True}) == [
        [-1, 2.5, None, True]
    ]
    assert database.rows("SELECT CAST(:d AS DATE)", parameters={"d": "2026-07-16"}) == [["2026-07-16"]]
    assert "parameter @b has no value" in database.error("SELECT @b", parameters={"a": 1})
    assert "must be a text" in database.error("SELECT @a", parameters={"a": [1]})


def test_results_are_plain_json(database: Database) -> None:
    ((number,),) = database.rows("SELECT SUM(AnnualContractValue__c) FROM {ACCOUNT}")
    assert number == sum(int(a["AnnualContractValue__c"]) for a in rows_of("crm_accounts.csv"))
    assert isinstance(number, int)
    for value, expected in (
        (None, None),
        (True, True),
        (0.5, 0.5),
        (float("nan"), "nan"),
        (Decimal("250000.0000"), 250000),
        (Decimal("0.25"), 0.25),
        (Decimal("12345678901234567.25"), "12345678901234567.25"),
        (dt.datetime(2026, 7, 16, 1, 2, 3), "2026-07-16 01:02:03"),
        (dt.date(2026, 7, 16), "2026-07-16"),
        (dt.time(1, 2, 3), "01:02:03"),
        (b"\x00\xff", "0x00ff"),
        ([1, Decimal(2)], [1, 2]),
        ({"a": dt.date(2026, 7, 16)}, {"a": "2026-07-16"}),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ):
        assert json_value(value) == expected


# --- errors that help ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (f"SELECT nope FROM {ACCOUNT}", ["nope", "not found"]),
        (f"SELECT Nam FROM {ACCOUNT}", ['"Nam"', '"Name"']),
        (f"SELECT nofunc(Name) FROM {ACCOUNT}", ["nofunc", "does not exist"]),
        (f"SELECT Name, COUNT(*) FROM {ACCOUNT}", ['"Name"', "GROUP BY"]),
        ("SELECT * FROM CRM_System.Salesforce.Acount", ["Acount", "[CRM_System].[Salesforce].[Account]"]),
        ("SELECT * FROM CRM_System.WH_DATA.Account", ["[CRM_System].[Salesforce].[Account]"]),
        ("SELECT * FROM nothing_like_it", ["nothing_like_it", "does not exist"]),
        (f"SELECT Name FROM {ACCOUNT} WHERE", ["WHERE is incomplete", "line 1"]),
        (f"SELEC Name FROM {ACCOUNT}", ["Parser Error"]),
        ("SELECT 'abc", ["quote"]),
        ("SELECT CAST('x' AS INT)", ["Conversion Error", "'x'"]),
        (f"SELECT TOP 5 WITH TIES Name FROM {ACCOUNT} ORDER BY Name", ["WITH TIES", "RANK()"]),
        ("SELECT FORMAT(1, UPPER('n2'))", ["FORMAT", "literal"]),
        ("SELECT DATEADD(fortnight, 1, GETDATE())", ["fortnight"]),
        ("SELECT DATEDIFF(day)", ["DATEDIFF"]),
        ("SELECT PATINDEX('%[0-9]%', 'a1')", ["PATINDEX"]),
        ("SELECT CONVERT(VARCHAR(10), GETDATE(), 130)", ["style 130"]),
        ("", ["empty"]),
        ("  -- only a comment", ["empty"]),
        ("hello there", ["SELECT"]),
        ("SELECT 1; SELECT 2", ["2 statements"]),
        (f"INSERT INTO {QUEUE} (ID, ACCOUNT_NAME) VALUES (1, 'x')", ["ID", "leave it out"]),
        (f"INSERT INTO {QUEUE} (ACCOUNT, REASON) VALUES ('x', 'y')", ["'ACCOUNT'", "ACCOUNT_NAME"]),
        (f"INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) VALUES ('x')", ["row 1", "1 values", "2 columns"]),
        (f"INSERT INTO {QUEUE} (ACCOUNT_NAME) VALUES ('x') RETURNING *", ["RETURNING"]),
        (f"INSERT INTO {QUEUE} DEFAULT VALUES", ["VALUES"]),
        ("INSERT INTO nowhere (a) VALUES (1)", ["nowhere"]),
        ("INSERT INTO sys_tables (TableName) VALUES ('x')", ["cannot be written to"]),
    ],
)  # fmt: skip
def test_an_error_says_what_is_wrong(database: Database, query: str, words: list[str]) -> None:
    message = database.error(query)
    for word in words:
        assert word in message
    assert "<class" not in message
    assert "/tmp" not in message


def test_paths_and_the_translated_statement_are_cut_out_of_messages() -> None:
    text = 'IO Error: Cannot open "/tmp/x/CRM_System.duckdb": no\n\nLINE 1: SELECT "secret"\n        ^'
    assert clean(text) == 'IO Error: Cannot open "<path>": no'
    assert clean("a / b and 1/2 stay") == "a / b and 1/2 stay"


# --- what never runs ------------------------------------------------------------------------------------------------

ESCAPES = [
    "SELECT * FROM read_csv('/etc/hosts')",
    "SELECT * FROM read_csv_auto('/etc/hosts')",
    "SELECT * FROM read_text('/proc/self/environ')",
    "SELECT * FROM read_blob('/etc/hosts')",
    "SELECT * FROM read_json('/etc/hosts')",
    "SELECT * FROM read_parquet('x.parquet')",
    "SELECT * FROM read_duckdb('x.duckdb')",
    "SELECT * FROM parquet_scan('x')",
    "SELECT * FROM glob('/**')",
    "SELECT * FROM sniff_csv('/etc/hosts')",
    "SELECT * FROM '/etc/hosts'",
    "SELECT * FROM '/etc/hosts.csv'",
    'SELECT * FROM "goldens/r1.csv"',
    "FROM 'x.json'",
    "SELECT (SELECT content FROM read_text('/etc/hosts'))",
    f"SELECT Name FROM {ACCOUNT} WHERE Name IN (SELECT content FROM read_text('/etc/hosts'))",
    f"WITH f AS (SELECT * FROM read_text('/etc/hosts')) SELECT * FROM {ACCOUNT}, f",
    f"SELECT * FROM {ACCOUNT} a CROSS APPLY read_text('/etc/hosts')",
    f"SELECT * FROM {ACCOUNT} a, LATERAL (SELECT * FROM glob('*')) g",
    "SELECT getenv('HOME')",
    "SELECT getvariable('x')",
    "SELECT current_setting('temp_directory')",
    "SELECT * FROM duckdb_databases()",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM pragma_database_size()",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('x')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT json_serialize_sql('SELECT 1')",
    "SELECT nextval('x')",
    "SELECT write_log('x')",
    "SELECT pg_sleep(1)",
    "SELECT sleep_ms(1000)",
    "SELECT * FROM memory.meta.tables",
    "SELECT * FROM system.main.duckdb_tables",
    "SELECT * FROM pg_catalog.pg_tables",
    "SELECT * FROM sqlite_master",
    "COPY (SELECT 1) TO 'leak.csv'",
    f"COPY {ACCOUNT} TO '/dev/stdout'",
    f"COPY {QUEUE} FROM 'x.csv'",
    "EXPORT DATABASE 'leak'",
    "IMPORT DATABASE 'leak'",
    "ATTACH 'x.duckdb' AS x",
    "ATTACH ':memory:' AS x",
    'DETACH "CRM_System"',
    "USE CRM_System",
    "INSTALL httpfs",
    "LOAD httpfs",
    "FORCE INSTALL httpfs",
    "SET memory_limit = '1TB'",
    "SET enable_external_access = true",
    "SET search_path = 'x'",
    "SET VARIABLE x = 1",
    "RESET ALL",
    "PRAGMA enable_profiling",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "CREATE SECRET s (TYPE s3)",
    "CHECKPOINT",
    "VACUUM",
    "BEGIN",
    "BEGIN TRANSACTION",
    "COMMIT",
    "ROLLBACK",
    "SHOW TABLES",
    "SHOW ALL TABLES",
    "EXPLAIN SELECT 1",
    f"EXPLAIN ANALYZE DELETE FROM {ACCOUNT}",
    "EXEC sp_help",
    "xp_cmdshell 'ls'",
    "DECLARE @x INT",
    "GO",
]

WRITES = [
    f"WITH k AS (SELECT 'x' AS n) DELETE FROM {ACCOUNT} WHERE Name IN (SELECT n FROM k)",
    f"WITH k AS (DELETE FROM {ACCOUNT} RETURNING *) SELECT * FROM k",
    f"WITH k AS (INSERT INTO {QUEUE} (ACCOUNT_NAME) VALUES ('x') RETURNING *) SELECT * FROM k",
    f"WITH k AS (UPDATE {ACCOUNT} SET Name = 'x' RETURNING *) SELECT * FROM k",
    f"/* x */ UPDATE {ACCOUNT} SET Name = upper(Name)",
    f"-- x\nINSERT INTO {QUEUE} (ACCOUNT_NAME) SELECT Name FROM {ACCOUNT}",
    f"SELECT 1; DROP TABLE {ACCOUNT}",
    f"SELECT 1; INSERT INTO {QUEUE} (ACCOUNT_NAME) VALUES ('x')",
    f"SELECT * INTO copied FROM {ACCOUNT}",
    f"DROP TABLE {ACCOUNT}",
    f"TRUNCATE TABLE {ACCOUNT}",
    f"ALTER TABLE {ACCOUNT} ADD x INT",
    f"DELETE FROM {ACCOUNT}",
    "CREATE TABLE x (a INT)",
    "CREATE TEMP TABLE x AS SELECT 1",
    "CREATE OR REPLACE VIEW x AS SELECT 1",
    "CREATE MACRO main.sum(x) AS 42",
    'CREATE MACRO "+"(a, b) AS 1',
    "CREATE TYPE t AS ENUM ('a')",
    "CREATE SCHEMA s",
    f"MERGE INTO {ACCOUNT} t USING {ACCOUNT} s ON t.Id = s.Id WHEN MATCHED THEN DELETE",
    f"PREPARE p AS DELETE FROM {ACCOUNT}",
    "EXECUTE p",
    "DEALLOCATE p",
    f"SELECT * FROM {ACCOUNT} FOR UPDATE",
    "COMMENT ON TABLE x IS 'y'",
]


@pytest.mark.parametrize("statement", ESCAPES + WRITES)
def test_never_over_the_read_tool(database: Database, statement: str) -> None:
    database.error(statement, "select")


def counted(database: Database) -> list[Any]:
    return [database.rows(f"SELECT COUNT(*) FROM {t.shown}")[0][0] for t in TABLES]


def test_nothing_refused_has_had_an_effect(writable: Database, tmp_path: Path) -> None:
    before, files = counted(writable), sorted(p.name for p in tmp_path.iterdir())
    for statement in ESCAPES:
        writable.error(statement, *EVERYTHING)
    for statement in WRITES:
        writable.error(statement, "select")
    for statement in WRITES:
        if "INSERT INTO" not in statement.split("SELECT")[0] and not statement.startswith("DELETE"):
            writable.error(statement, *EVERYTHING)
    assert counted(writable) == before
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.endswith(".wal")) == files
    assert writable.rows("SELECT SUM(x) FROM (SELECT 1 AS x UNION ALL SELECT 2) t") == [[3]]
    assert [r[0] for r in writable.rows("SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES")] == [t.name for t in TABLES]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1",
        "-- a leading comment is not a write\nSELECT 1",
        "/* note */ WITH x AS (SELECT 1 AS a) SELECT a FROM x",
        f"FROM {ACCOUNT} LIMIT 1",
        "SELECT ';' AS semi, 'DELETE FROM t' AS txt, replace('a', 'a', 'b') AS r",
        f"SELECT MAX(Name) AS [delete], MIN(Name) AS \"insert\" FROM {ACCOUNT}",
        "SELECT 1;",
        "VALUES (1)",
        "(SELECT 1) UNION ALL (SELECT 2)",
        "WITH RECURSIVE n AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM n WHERE x < 5) SELECT MAX(x) FROM n",
        "SELECT * FROM generate_series(1, 3)",
        "SELECT 'CREATE TABLE', 'read_csv(''/etc/passwd'')'",
        "SELECT ((((((((((((((((((((((((((((((1))))))))))))))))))))))))))))))",
    ],
)  # fmt: skip
def test_harmless_over_the_read_tool(database: Database, statement: str) -> None:
    assert database.run(statement)["rows"]


def test_the_insert_tool_takes_one_insert_and_nothing_else(writable: Database) -> None:
    assert (
        writable.run(f"INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) VALUES ('a', 'r'), ('b', 'r')", "insert")["affected"]
        == 2
    )
    select = f"INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) SELECT TOP 3 Name, 'r' FROM {ACCOUNT} ORDER BY Name"
    assert writable.run(select, "insert")["affected"] == 3
    with_ = f"WITH k AS (SELECT TOP 2 Name FROM {ACCOUNT}) INSERT INTO {QUEUE} (ACCOUNT_NAME) SELECT Name FROM k"
    assert writable.run(with_, "insert")["affected"] == 2
    unnamed = f"INSERT INTO {QUEUE} VALUES ('c', 'r', GETDATE())"
    assert writable.run(unnamed, "insert")["affected"] == 1
    found = writable.rows(f"SELECT ID, QUEUED_AT FROM {QUEUE} ORDER BY ID")
    assert found == [[n, "2026-07-16 00:00:00"] for n in range(1, 9)]
    for statement in ("SELECT 1", f"DELETE FROM {QUEUE}", f"SELECT * FROM {QUEUE}", *WRITES[5:9], *ESCAPES[:20]):
        if not statement.startswith("-- x\nINSERT"):
            writable.error(statement, "insert")
    assert len(writable.rows(f"SELECT * FROM {QUEUE}")) == 8


@pytest.mark.parametrize(
    "source",
    [
        "SELECT content FROM read_text('/etc/hosts')",
        "VALUES ((SELECT content FROM read_text('/etc/hosts')))",
        "SELECT current_setting('temp_directory')",
        "SELECT path FROM duckdb_databases()",
        "WITH f AS (SELECT * FROM glob('*')) SELECT * FROM f",
    ],
)
def test_an_insert_reads_nothing_that_a_select_may_not(writable: Database, source: str) -> None:
    writable.error(f"INSERT INTO {QUEUE} (ACCOUNT_NAME) {source}", "insert")
    writable.error(f"DELETE FROM {QUEUE} WHERE ACCOUNT_NAME IN ({source})", "delete")
    assert writable.rows(f"SELECT * FROM {QUEUE}") == []


def test_deleting(writable: Database) -> None:
    writable.run(f"INSERT INTO {QUEUE} (ACCOUNT_NAME) VALUES ('a'), ('b'), ('c')", "insert")
    assert writable.run(f"DELETE FROM {QUEUE} WHERE ACCOUNT_NAME = 'a'", "delete")["affected"] == 1
    assert (
        writable.run(f'DELETE FROM {QUEUE} q WHERE q.ACCOUNT_NAME = "ACCOUNT_NAME" AND q.ID < 3', "delete")["affected"]
        == 1
    )
    assert writable.run(f"DELETE FROM {QUEUE}", "delete")["affected"] == 1


def test_a_read_only_database_takes_no_insert(database: Database) -> None:
    assert "read only" in database.error(f"INSERT INTO {QUEUE} (ACCOUNT_NAME) VALUES ('x')", "insert")


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_result_is_capped_by_rows_and_by_bytes(database: Database) -> None:
    capped = database.run(f"SELECT Name FROM {ACCOUNT}", max_rows=10, truncate=True)
    assert (len(capped["rows"]), capped["more"]) == (10, True)
    exact = database.run(f"SELECT TOP 10 Name FROM {ACCOUNT}", max_rows=10, truncate=True)
    assert (len(exact["rows"]), exact["more"]) == (10, False)
    small = database.run(f"SELECT Name FROM {ACCOUNT}", max_bytes=1_000, truncate=True)
    assert 0 < len(small["rows"]) < 100
    assert small["more"]
    wide = database.run("SELECT repeat('x', 5000)", max_bytes=1_000, truncate=True)
    assert (wide["rows"], wide["more"]) == ([], True)
    assert "larger than 10 rows" in database.error(f"SELECT Name FROM {ACCOUNT}", max_rows=10)


def test_schema_only(database: Database) -> None:
    found = database.run(f"SELECT Name, NumberOfEmployees FROM {ACCOUNT}", schema_only=True)
    assert [(c["name"], c["type"]) for c in found["columns"]] == [("Name", "VARCHAR"), ("NumberOfEmployees", "BIGINT")]
    assert found["rows"] == []


def test_translating_is_bounded() -> None:
    translator = Translator(TABLES)
    with pytest.raises(SqlError, match="characters"):
        translator.translate("SELECT '" + "x" * MAX_STATEMENT_CHARS + "'", frozenset({"select"}))
    for hostile in ("SELECT " + "(" * 20_000 + "1" + ")" * 20_000, "SELECT " + "CASE WHEN 1=1 THEN " * 2_000, "\x00"):
        with pytest.raises(SqlError) as caught:
            translator.translate(hostile, frozenset({"select"}))
        assert len(str(caught.value)) < 1_000


def test_a_statement_told_to_stop_stops(database: Database) -> None:
    running = Running()
    running.stop("cancelled")  # before it has begun
    with pytest.raises(EngineError) as caught:
        database.engine.run(
            running, {"sql": "SELECT 1", "allowed": ["select"], "max_rows": 1, "max_bytes": 100}, lambda: None
        )
    assert caught.value.code == "interrupted"
    assert database.rows("SELECT 1") == [[1]]


# --- translating ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    ["SELECT nope FROM nowhere", "SELECT 1; SELECT 2", "DROP TABLE x", f"SELECT * FROM {ACCOUNT} WHERE (",
     "SELECT CONVERT(VARCHAR, GETDATE(), 999)"],
)  # fmt: skip
def test_what_was_refused_is_refused_in_the_same_words(sql: str) -> None:
    translator = Translator(TABLES)

    def refused(*allowed: str) -> SqlError:
        with pytest.raises(SqlError) as caught:
            translator.translate(sql, frozenset(allowed))
        return caught.value

    first = refused("select")
    again = [refused("select") for _ in range(3)]
    assert {(type(error), str(error)) for error in again} == {(type(first), str(first))}
    assert again[0] is not again[1]  # one that is raised again keeps all its traces
    with pytest.raises(SqlError) as caught:
        Translator(TABLES).translate(sql, frozenset(EVERYTHING))
    assert str(refused(*EVERYTHING)) == str(caught.value)


def test_no_more_refusals_are_kept_than_a_few_hundred() -> None:
    translator = Translator(TABLES)
    for number in range(600):
        with pytest.raises(SqlError):
            translator.translate(f"SELECT * FROM nowhere_{number}", frozenset({"select"}))
    assert 0 < len(translator._refused) <= 256


@pytest.mark.parametrize(
    "sql",
    ["SELECT 1", "WITH a AS (SELECT 1 AS x UNION ALL SELECT 2) SELECT x, -x + 1 FROM a WHERE x IN (1, 2) ORDER BY x",
     "SELECT a.b.c, COUNT(*) OVER (PARTITION BY d) FROM t CROSS APPLY (SELECT TOP 1 * FROM u) v PIVOT (SUM(x) FOR y IN "
     "([1], [2])) p"],
)  # fmt: skip
def test_trees_are_gone_through_in_the_librarys_order(sql: str) -> None:
    tree = sqlglot.parse_one(sql, read="tsql")
    assert list(map(id, nodes(tree))) == list(map(id, tree.walk()))
    assert [*map(id, find_all(tree, exp.Select, exp.Column))] == [*map(id, tree.find_all(exp.Select, exp.Column))]
    assert find(tree, exp.Column) is tree.find(exp.Column)
    present = Kinds(nodes(tree))
    assert present.any(exp.Query)
    assert not present.any(exp.Insert, exp.Command)
