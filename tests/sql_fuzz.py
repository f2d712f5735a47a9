"""Statements and request bodies for fuzzing the endpoint, and what must hold for each of them.

`check_statement` is the invariant of the layer that decides what may run: what it lets pass is, by the engine's own
view, one SELECT of the endpoint's tables or one INSERT or DELETE of one of them, and it fails with nothing but its own
error.
"""

from __future__ import annotations

import json
import logging
import re
import time
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import httpx2
from attack_files import ACCOUNT, FOLDER, QUEUE, attacks
from hypothesis import strategies as st

from pytest_ctxbench.local.dialect import SqlError
from pytest_ctxbench.local.guard import Guard
from pytest_ctxbench.local.schema import TABLES
from pytest_ctxbench.local.sql import META_SCHEMA, META_TABLES, Translator

#: Inputs that once broke something, one JSON text a line: they are tried first, in the suite too.
FOUND = Path(__file__).parent / "attacks" / "found.jsonl"
EVERYTHING = frozenset({"select", "insert", "delete"})
TABLE_NAMES = frozenset('"' + '"."'.join(t.path) + '"' for t in TABLES)


# --- statements ------------------------------------------------------------------------------------------------------

_WORDS = [
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP",
    "BY",
    "HAVING",
    "ORDER",
    "LIMIT",
    "TOP",
    "OFFSET",
    "FETCH",
    "NEXT",
    "ROWS",
    "ONLY",
    "WITH",
    "RECURSIVE",
    "AS",
    "MATERIALIZED",
    "UNION",
    "ALL",
    "EXCEPT",
    "INTERSECT",
    "JOIN",
    "LEFT",
    "CROSS",
    "APPLY",
    "LATERAL",
    "ASOF",
    "POSITIONAL",
    "ON",
    "USING",
    "INSERT",
    "INTO",
    "VALUES",
    "DEFAULT",
    "RETURNING",
    "CONFLICT",
    "DO",
    "NOTHING",
    "UPDATE",
    "SET",
    "DELETE",
    "MERGE",
    "DROP",
    "TABLE",
    "CREATE",
    "TEMP",
    "MACRO",
    "ATTACH",
    "COPY",
    "TO",
    "PRAGMA",
    "CALL",
    "EXPLAIN",
    "ANALYZE",
    "PREPARE",
    "EXECUTE",
    "DESCRIBE",
    "SUMMARIZE",
    "SHOW",
    "PIVOT",
    "UNPIVOT",
    "IN",
    "FOR",
    "CASE",
    "WHEN",
    "THEN",
    "ELSE",
    "END",
    "NOT",
    "AND",
    "OR",
    "IS",
    "NULL",
    "LIKE",
    "ESCAPE",
    "BETWEEN",
    "EXISTS",
    "CAST",
    "TRY_CAST",
    "CONVERT",
    "INTERVAL",
    "DISTINCT",
    "OVER",
    "PARTITION",
    "FILTER",
    "WITHIN",
    "WINDOW",
    "QUALIFY",
    "SAMPLE",
    "TABLESAMPLE",
    "EXCLUDE",
    "REPLACE",
    "COLUMNS",
    "DECLARE",
    "EXEC",
    "GO",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "USE",
    "LOAD",
    "INSTALL",
    "EXPORT",
    "IMPORT",
    "GRANT",
    "VACUUM",
    "CHECKPOINT",
    "TRUNCATE",
    "ALTER",
    "OUTPUT",
]
_SIGNS = [
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ";",
    ".",
    "..",
    "*",
    "+",
    "-",
    "/",
    "%",
    "=",
    "<>",
    "<",
    ">",
    "||",
    "::",
    ":",
    "@",
    "@@",
    "$",
    "$1",
    "?",
    "#",
    "##",
    "->",
    "->>",
    "=>",
    ":=",
    "!",
    "~",
    "^",
    "&",
    "|",
    "\\",
    "`",
    "'",
    '"',
    "''",
    "--",
    "/*",
    "*/",
    "\n",
    "\t",
    "\x00",
    "\ufeff",
    "\u00a0",
    "\u200b",
    "$$",
    "$a$",
    "N'",
    "E'",
    "X'",
    "0x1F",
    "1e9",
    "1.",
    ".5",
    "9" * 40,
]
_NAMES = [
    "x",
    "t",
    "a.b",
    "Name",
    "[Name]",
    '"Name"',
    "`Name`",
    "*",
    "t.*",
    "Account",
    "REVIEW_QUEUE",
    "tables",
    "information_schema.tables",
    "duckdb_settings",
    "duckdb_tables",
    "pragma_database_list",
    "pg_class",
    "sqlite_master",
    "memory.meta.tables",
    "system.main.duckdb_logs",
    "pg_catalog.pg_settings",
    "temp.main.t",
    "'/etc/passwd'",
    '"/etc/passwd"',
    "'x.csv'",
    "#tmp",
    "sys_tables",
    "current_user",
    "current_date",
    "GETDATE()",
]
_VALUES = [
    "1",
    "0",
    "-1",
    "NULL",
    "TRUE",
    "'a'",
    "''",
    "'2026-01-01'",
    "DATE '2026-01-01'",
    "[1, 2]",
    "{'a': 1}",
    "MAP {1: 2}",
    "INTERVAL 1 DAY",
    "'x' + 'y'",
    "1 + 1",
    "x -> x + 1",
    "N'é'",
    "0x41",
    "@p",
    ":p",
    "(1, 2)",
]


@cache
def _functions() -> list[str]:
    connection = duckdb.connect(":memory:")
    rows = connection.execute("SELECT DISTINCT function_name FROM duckdb_functions() ORDER BY 1").fetchall()
    connection.close()
    tsql = "DATEDIFF DATEADD DATEPART EOMONTH ISNULL IIF LEN CHARINDEX STUFF FORMAT CHOOSE STR PATINDEX TO_CHAR TO_DATE"
    return [str(n) for (n,) in rows if re.fullmatch(r"\w+", str(n))] + tsql.split()


@cache
def _corpus() -> list[str]:
    found = [a.sql for path in sorted(FOLDER.glob("*.sql")) for a in attacks(path.stem)]
    found += [
        f"SELECT TOP 5 Name, COUNT(*) AS n FROM {ACCOUNT} WHERE Name LIKE '%a%' GROUP BY Name ORDER BY n DESC",
        f"WITH k AS (SELECT Id, Name FROM {ACCOUNT}) "
        f"SELECT a.Name FROM k a LEFT JOIN {QUEUE} q ON q.ACCOUNT_NAME = a.Name",
        f"INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) SELECT Name, 'r' FROM {ACCOUNT} WHERE Name IS NOT NULL",
        f"INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) VALUES ('a', 'b'), ('c', NULL)",
        f"DELETE FROM {QUEUE} WHERE ID IN (SELECT MAX(ID) FROM {QUEUE})",
        "SELECT x, SUM(x) OVER (PARTITION BY x ORDER BY x ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM range(3) t(x)",
    ]
    return found


def _call(name: str, arguments: list[str]) -> str:
    return f"{name}({', '.join(arguments)})"


def _expressions() -> st.SearchStrategy[str]:
    names = st.sampled_from(_NAMES[:11])
    leaves = st.one_of(st.sampled_from(_VALUES), names)

    def more(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.builds(_call, st.deferred(lambda: st.sampled_from(_functions())), st.lists(inner, max_size=3)),
            st.builds(
                "{} {} {}".format,
                inner,
                st.sampled_from(["+", "-", "*", "/", "=", "<", "AND", "OR", "||", "LIKE", "IN", "::", "->"]),
                inner,
            ),
            st.builds("CASE WHEN {} THEN {} END".format, inner, inner),
            st.builds("({})".format, inner),
            st.builds("NOT {}".format, inner),
            st.builds(
                "CAST({} AS {})".format, inner, st.sampled_from(["INT", "VARCHAR(3)", "DATE", "FLOAT", "INT[]", "x"])
            ),
            st.builds("(SELECT {} FROM {})".format, inner, _tables()),
            st.builds("EXISTS (SELECT 1 FROM {} WHERE {})".format, _tables(), inner),
            st.builds("SUM({}) OVER (ORDER BY {})".format, inner, inner),
        )

    return st.recursive(leaves, more, max_leaves=8)


def _tables() -> st.SearchStrategy[str]:
    plain = st.one_of(st.sampled_from([ACCOUNT, QUEUE, "k", "(SELECT 1 AS x) t"]), st.sampled_from(_NAMES))
    functions = st.builds(
        lambda name, value: f"{name}({value})",
        st.deferred(lambda: st.sampled_from(_functions())),
        st.sampled_from(_VALUES),
    )
    return st.one_of(plain, functions)


@st.composite
def _selects(draw: st.DrawFn) -> str:
    sql = "SELECT " + ", ".join(draw(st.lists(_expressions(), min_size=1, max_size=3)))
    sources = draw(st.lists(_tables(), max_size=3))
    if sources:
        glue = draw(st.sampled_from([", ", " CROSS JOIN ", " JOIN LATERAL ", " CROSS APPLY ", " POSITIONAL JOIN "]))
        sql += " FROM " + glue.join(sources)
    for clause in ("WHERE", "GROUP BY", "HAVING", "QUALIFY", "ORDER BY", "LIMIT"):
        if draw(st.integers(0, 5)) == 0:
            sql += f" {clause} {draw(_expressions())}"
    if draw(st.integers(0, 3)) == 0:
        name = draw(st.sampled_from(["k", "duckdb_tables", "pg_class", "tables", "x", "Account", '"/etc/passwd"']))
        sql = f"WITH {name} AS ({draw(st.sampled_from(_corpus()))}) {sql}"
    if draw(st.integers(0, 5)) == 0:
        sql += draw(st.sampled_from([" UNION ALL ", " EXCEPT ", "; ", " /* */ ; "])) + draw(st.sampled_from(_corpus()))
    return sql


@st.composite
def _mutations(draw: st.DrawFn) -> str:
    sql = draw(st.sampled_from(_corpus()))
    for _ in range(draw(st.integers(1, 4))):
        one, two = sorted((draw(st.integers(0, len(sql))), draw(st.integers(0, len(sql)))))
        kind = draw(st.integers(0, 5))
        if kind == 0:
            sql = sql[:one] + sql[two:]
        elif kind == 1:
            sql = sql[:two] + sql[one:]
        elif kind == 2:
            sql = sql[:one] + draw(st.sampled_from(_SIGNS)) + sql[one:]
        elif kind == 3:
            sql = sql[:one] + " " + draw(st.sampled_from([*_WORDS, *_NAMES, *_VALUES])) + " " + sql[one:]
        elif kind == 4:
            other = draw(st.sampled_from(_corpus()))
            sql = sql[:one] + other[min(one, len(other)) :]
        else:
            shape = draw(
                st.sampled_from(
                    [
                        "({})",
                        "SELECT * FROM ({}) t",
                        "WITH k AS ({}) SELECT * FROM k",
                        "SELECT 1 WHERE EXISTS ({})",
                        "{} UNION ALL {}",
                        "DESCRIBE {}",
                        "{};{}",
                        "EXPLAIN {}",
                        "/* {} */ SELECT 1",
                        "SELECT ({})",
                        "SUMMARIZE {}",
                        f"INSERT INTO {QUEUE} (ACCOUNT_NAME) {{}}",
                    ]
                )
            )
            sql = shape.replace("{}", sql)
    return sql


@st.composite
def _towers(draw: st.DrawFn) -> str:
    """One piece many times over, in itself or in a row."""
    start, end = draw(
        st.sampled_from(
            [
                ("(", ")"),
                ("SELECT (", ")"),
                ("CAST(", " AS INT)"),
                ("CASE WHEN 1=1 THEN ", " END"),
                ("[", "]"),
                ("{'a': ", "}"),
                ("x -> ", ""),
                ("f(", ")"),
                ("(SELECT * FROM ", ") t"),
                ("NOT ", ""),
                ("- ", ""),
                ("1 IN (", ")"),
                ("EXISTS (SELECT ", ")"),
                ("WITH k AS (", ") SELECT 1"),
                ("IF(1, ", ", 2)"),
                ("INTERVAL ", " DAY"),
                ("a.", ""),
                ("1 + ", ""),
                ("x BETWEEN ", " AND 1"),
                ("DATE ", ""),
                ("STRUCT(", ")"),
                ("list_transform([1], x -> ", ")"),
                ("COALESCE(", ", 1)"),
                ("CONVERT(INT, ", ")"),
                ("(SELECT *, * FROM ", ") t"),
                ("TRIM(", ")"),
                ("MAP {", ": 1}"),
                ("EXTRACT(DAY FROM ", ")"),
            ]
        )
    )
    times = draw(st.sampled_from([3, 10, 20, 40, 150, 400, 3_000]))
    return "SELECT " + start * times + draw(st.sampled_from(["1", "x", "(SELECT 1 AS a) t", ""])) + end * times


def statements() -> st.SearchStrategy[str]:
    soup = st.builds(
        lambda parts, glue: glue.join(parts),
        st.lists(st.one_of(*(st.sampled_from(v) for v in (_WORDS, _SIGNS, _NAMES, _VALUES))), max_size=25),
        st.sampled_from([" ", "", "\n", "/**/"]),
    )
    return st.one_of(_mutations(), _selects(), _towers(), soup, st.text(max_size=60))


class Judge:
    """The deciding layer without anything behind it, and the engine's own parser beside it."""

    def __init__(self) -> None:
        logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
        self._connection = duckdb.connect(":memory:")
        self._translator = Translator(TABLES, cache_size=1)
        self._guard = Guard(self._connection, TABLES)
        self._system = {".".join(f'"{p}"' for p in (*META_SCHEMA, name)) for name in META_TABLES}

    def check_statement(self, sql: str) -> float:
        """Seconds that the decision took. Raises AssertionError, or whatever the decision wrongly raises."""
        started = time.perf_counter()
        try:
            statement = self._translator.translate(sql, EVERYTHING)
            for check in statement.checks:
                self._guard.check(self._connection.cursor(), check)
        except SqlError as error:
            if not str(error).strip():
                raise AssertionError("an error without words") from error
            return time.perf_counter() - started
        seconds = time.perf_counter() - started
        assert statement.checks, "nothing was checked"
        try:
            parsed = self._connection.extract_statements(statement.sql)
        except duckdb.Error:
            return seconds  # the engine will not run it either
        assert len(parsed) == 1, f"{len(parsed)} statements: {statement.sql!r}"
        kind = str(parsed[0].type).rsplit(".", 1)[-1].split("_")[0].lower()
        assert kind == statement.kind, f"{kind}, not {statement.kind}: {statement.sql!r}"
        if statement.target is not None:
            assert '"' + '"."'.join(statement.target) + '"' in TABLE_NAMES
            assert statement.sql.split(" ", 2)[2].startswith('"' + '"."'.join(statement.target) + '"')
        for text in statement.checks:
            self._only_known_tables(text)
        return seconds

    def _only_known_tables(self, text: str) -> None:
        try:
            names = self._connection.get_table_names(text, qualified=True)
        except duckdb.Error:
            return
        for name in names:
            name = name.split(" AS ")[0]  # the engine names a table with its alias here
            quoted = ".".join(f'"{part.strip(chr(34))}"' for part in name.split("."))
            assert quoted in TABLE_NAMES or quoted in self._system, f"{name} is read: {text!r}"


# --- request bodies --------------------------------------------------------------------------------------------------

_ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from([10**400, -(2**63), 1e308, "\ud800", "\x00", "SELECT 1", "", "NaN"]),
)
_JSON = st.recursive(
    _ATOMS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_QUERIES = st.one_of(
    st.sampled_from(
        [
            "SELECT 1",
            "SELECT @p AS a",
            f"SELECT COUNT(*) FROM {QUEUE} WHERE ACCOUNT_NAME = @p",
            "SELECT @p + @q",
            f"DELETE FROM {QUEUE} WHERE ID = @p AND 1 = 0",
            f"SELECT TOP (@p) Name FROM {ACCOUNT}",
        ]
    ),
    _mutations(),
    _JSON,
)
_NAMED = st.dictionaries(st.sampled_from(["p", "@p", "q", ":q", "P", "", "@"]), _JSON, max_size=3)


def bodies() -> st.SearchStrategy[bytes]:
    keys = {"query": _QUERIES}
    more = {
        "parameters": _NAMED | _JSON | st.lists(_NAMED, max_size=3),
        "schemaOnly": _JSON,
        "defaultCatalog": _JSON,
        "defaultSchema": _JSON,
        "sql": _JSON,
    }
    shaped = st.fixed_dictionaries(keys, optional=more)
    encoded = st.builds(lambda value: json.dumps(value).encode(), shaped | _JSON)
    odd = st.sampled_from(
        [
            b"",
            b"{",
            b"null",
            b"[" * 100_000,
            b'{"query":' * 20_000,
            b'{"a":1,"a":2}',
            b"\xff\xfe{\x00}\x00",
            b'\xef\xbb\xbf{"query":"SELECT 1"}',
            b'{"query":"SELECT 1","query":"DROP TABLE x"}',
            b'{"query":"SELECT 1"}{}',
            b'{"query":"SELECT 1","x":' + b"9" * 10_000 + b"}",
            b"{'query':1}",
        ]
    )
    return st.one_of(encoded, odd, st.binary(max_size=60))


#: Codes of an error object; INTERNAL_ERROR would be a fault of ours.
CODES = {"INVALID_REQUEST"}
HIDDEN = re.compile(r"Traceback|ctxbench-serve|site-packages|\.duckdb\b|\.py\b|internal error")


def check_body(http: httpx2.Client, path: str, body: bytes) -> None:
    """What must hold for any body whatever. Raises AssertionError."""
    response = http.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 200, f"{response.status_code} for {body[:300]!r}"
    answer: Any = response.json()
    assert not HIDDEN.search(response.text), response.text[:300]
    if "error" in answer:
        assert answer["error"]["code"] in CODES, f"{answer} for {body[:300]!r}"
        assert len(answer["error"]["message"].splitlines()) == 1, answer
    else:
        assert isinstance(answer["results"], list)


def found_inputs() -> list[str]:
    """The texts of `FOUND`."""
    lines = FOUND.read_text(encoding="utf-8").splitlines() if FOUND.exists() else []
    return [json.loads(line) for line in lines]
