"""Statements and request bodies for fuzzing the endpoint, and what must hold for each of them.

`check_statement` is the invariant of the layer that decides what may run: what it lets pass is, by the engine's own
view, one SELECT of the endpoint's tables or one INSERT or DELETE of one of them, and it fails with nothing but its own
error.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import httpx2
from attack_files import ACCOUNT, FOLDER, QUEUE, attacks, open_engine
from hypothesis import strategies as st
from sql_grammar import hostile, mutated, usual

from pytest_ctxbench.local.dialect import SqlError
from pytest_ctxbench.local.engine import Engine, EngineError, Running
from pytest_ctxbench.local.functions import TABLE_FUNCTIONS
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


_PLAIN_FUNCTIONS = "abs upper coalesce length nullif sum count LEN ISNULL IIF repeat".split()  # noqa: SIM905


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


def _expression(random: Random, depth: int = 3) -> str:
    if depth <= 0 or random.random() < 0.3:
        return random.choice([*_VALUES, *_NAMES[:11]])

    def inner() -> str:
        return _expression(random, depth - 1)

    kind = random.randrange(9)
    if kind == 0:
        name = random.choice(_functions() if random.random() < 0.5 else _PLAIN_FUNCTIONS)
        return f"{name}({', '.join(inner() for _ in range(random.randrange(4)))})"
    if kind == 1:
        sign = random.choice(["+", "-", "*", "/", "=", "<", "AND", "OR", "||", "LIKE", "IN", "::", "->"])
        return f"{inner()} {sign} {inner()}"
    if kind == 2:
        return f"CASE WHEN {inner()} THEN {inner()} END"
    if kind == 3:
        return f"({inner()})"
    if kind == 4:
        return f"NOT {inner()}"
    if kind == 5:
        return f"CAST({inner()} AS {random.choice(['INT', 'VARCHAR(3)', 'DATE', 'FLOAT', 'INT[]', 'x'])})"
    if kind == 6:
        return f"(SELECT {inner()} FROM {_table(random)})"
    if kind == 7:
        return f"EXISTS (SELECT 1 FROM {_table(random)} WHERE {inner()})"
    return f"SUM({inner()}) OVER (ORDER BY {inner()})"


def _table(random: Random) -> str:
    kind = random.choice([0, 0, 0, 0, 1, 2])  # mostly what there is: only what passes can pass wrongly
    if kind == 0:
        return random.choice([ACCOUNT, QUEUE, "k", "(SELECT 1 AS x) t"])
    if kind == 1:
        return random.choice(_NAMES)
    return f"{random.choice(_functions())}({random.choice(_VALUES)})"


def _select(random: Random) -> str:
    sql = "SELECT " + ", ".join(_expression(random) for _ in range(random.randint(1, 3)))
    sources = [_table(random) for _ in range(random.choice([0, 1, 1, 2, 3]))]
    if sources:
        glue = random.choice([", ", " CROSS JOIN ", " JOIN LATERAL ", " CROSS APPLY ", " POSITIONAL JOIN "])
        sql += " FROM " + glue.join(sources)
    for clause in ("WHERE", "GROUP BY", "HAVING", "QUALIFY", "ORDER BY", "LIMIT"):
        if random.randrange(6) == 0:
            sql += f" {clause} {_expression(random)}"
    if random.randrange(4) == 0:
        name = random.choice(["k", "duckdb_tables", "pg_class", "tables", "x", "Account", '"/etc/passwd"'])
        sql = f"WITH {name} AS ({random.choice(_corpus())}) {sql}"
    if random.randrange(6) == 0:
        sql += random.choice([" UNION ALL ", " EXCEPT ", "; ", " /* */ ; "]) + random.choice(_corpus())
    return sql


_SHAPES = [
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


def _mutation(random: Random) -> str:
    sql = random.choice(_corpus()) if random.random() < 0.5 else random.choice(_corpus()[-6:])
    for _ in range(random.randint(1, 4)):
        one, two = sorted((random.randint(0, len(sql)), random.randint(0, len(sql))))
        kind = random.randrange(6)
        if kind == 0:
            sql = sql[:one] + sql[two:]
        elif kind == 1:
            sql = sql[:two] + sql[one:]
        elif kind == 2:
            sql = sql[:one] + random.choice(_SIGNS) + sql[one:]
        elif kind == 3:
            sql = sql[:one] + " " + random.choice([*_WORDS, *_NAMES, *_VALUES]) + " " + sql[one:]
        elif kind == 4:
            other = random.choice(_corpus())
            sql = sql[:one] + other[min(one, len(other)) :]
        else:
            sql = random.choice(_SHAPES).replace("{}", sql)
    return sql


#: Pieces that hold others: what stands before and after.
_PIECES = [
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
    ("x::", ""),
    ("(", ")::INT"),
    ("x ->> ", ""),
    ("f(x, ", ", y)"),
    ("'a' + ", ""),
    ("ARRAY<", ">"),
    ("x::STRUCT(a ", ")"),
    ("CAST(x AS MAP(INT, ", "))"),
    ("CAST(x AS STRUCT<a ", ">)"),
    ("OBJECT(", ")"),
    ("[x FOR x IN ", "]"),
    ("a[", "]"),
    ("a[1:", "]"),
    ("LEFT(", ", 1)"),
    ("SUM(", ") OVER ()"),
    ("x COLLATE ", ""),
    ("x AT TIME ZONE ", ""),
    ("ISNULL(", ", 1)"),
    ("DATEADD(day, 1, ", ")"),
    ("FORMAT(", ", 'N2')"),
    ("(VALUES (", "))"),
    ("1 = ANY(", ")"),
    ("x NOT IN (", ", 1)"),
    ("x LIKE ", ""),
    ("(SELECT 1 UNION SELECT ", ")"),
    ("(SELECT 1 FROM t WHERE x = ", ")"),
    ("x, (", ")"),
    ("* EXCLUDE (", ")"),
    ("COLUMNS(", ")"),
    ("@", ""),
    (":", ""),
    ("?", ""),
    ("{", "}"),
    ("TRY_CAST(", " AS DATE)"),
    ("JSON_VALUE(", ", '$.a')"),
    ("x.y(", ")"),
    ("(((", "))"),
    ("CASE x WHEN ", " THEN 1 END"),
    ("NULLIF(", ", 1)"),
    ("IIF(", ", 1, 2)"),
    ("CHOOSE(1, ", ")"),
    ("STUFF(", ", 1, 1, 'a')"),
    ("STRING_AGG(", ", ',') WITHIN GROUP (ORDER BY 1)"),
]


def _tower(random: Random) -> str:
    """One piece many times over, in itself or in a row, at times two of them in turn."""
    pieces = [random.choice(_PIECES) for _ in range(random.choice([1, 1, 2]))]
    times = random.choice([3, 10, 20, 40, 150, 400, 3_000])
    start, end = "".join(p[0] for p in pieces), "".join(p[1] for p in reversed(pieces))
    return "SELECT " + start * times + random.choice(["1", "x", "(SELECT 1 AS a) t", ""]) + end * times


def _soup(random: Random) -> str:
    glue = random.choice([" ", "", "\n", "/**/"])
    words = (random.choice(random.choice([_WORDS, _SIGNS, _NAMES, _VALUES])) for _ in range(random.randrange(26)))
    return glue.join(words)


def _noise(random: Random) -> str:
    ranges = [(32, 126), (0, 31), (0x80, 0x2FF), (0x2000, 0x206F), (0xD800, 0xDFFF), (0x1F300, 0x1F6FF), (0, 0x10FFFF)]
    return "".join(chr(random.randint(*random.choice(ranges))) for _ in range(random.randrange(60)))


def _nearly_right(random: Random) -> str:
    return mutated(random, [*_WORDS, *_SIGNS, *_NAMES, *_VALUES])


def statement(random: Random) -> str:
    """Any statement whatever. Plain functions instead of strategies: they make thousands in the time of dozens.

    Two thirds are right, so that they get as far as the engine; the others are wrong in one place or in all.
    """
    kinds = [_mutation, _mutation, _select, _select, _soup, _tower, _noise]
    place = random.random()
    if place < 0.66:
        return usual(random)
    if place < 0.76:
        return _nearly_right(random)
    if place < 0.84:
        return hostile(random)
    return random.choice(kinds)(random)


def shortened(sql: str, breaks: Callable[[str], bool]) -> str:
    """A shorter text that `breaks` too, by leaving out parts as long as that works, for some seconds at most."""
    until = time.monotonic() + 20
    size = max(1, len(sql) // 2)
    while size and time.monotonic() < until:
        place, before = 0, len(sql)
        while place < len(sql) and time.monotonic() < until:
            shorter = sql[:place] + sql[place + size :]
            if breaks(shorter):
                sql = shorter
            else:
                place += size
        size = size if len(sql) < before and size > 1 else size // 2
    return sql


#: Stands in the environment while statements run, and may stand in no answer.
SECRET = "sk-fuzzed-5a1f0c"


class Judge:
    """The deciding layer, the engine's own parser beside it, and, with a `folder` for them, loaded databases behind it.

    `passed` statements were let pass, `ran` of them had a result.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.ran = 0
        self._folder = folder
        self._engine = open_engine(folder, loaded=True, timeout_s=3) if folder is not None else None
        if self._engine is not None:
            os.environ["CTXBENCH_FUZZ_KEY"] = SECRET
            self._catalogue = self._engine.run(Running(), {"catalogue": True}, lambda: None)
        logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
        self._connection = duckdb.connect(":memory:")
        self._translator = Translator(TABLES, cache_size=1)
        self._guard = Guard(self._connection, TABLES)
        self.passed = 0
        views = self._connection.execute("SELECT lower(view_name) FROM duckdb_views() WHERE internal").fetchall()
        self._views = {str(view) for (view,) in views} - META_TABLES
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
        self.passed += 1
        assert statement.checks, "nothing was checked"
        self.check_result(statement.sql, statement.kind)
        if statement.target is not None:
            assert '"' + '"."'.join(statement.target) + '"' in TABLE_NAMES
            assert statement.sql.split(" ", 2)[2].startswith('"' + '"."'.join(statement.target) + '"')
        for text in statement.checks:
            self._only_known_tables(text)
        if self._engine is not None:
            self._run(self._engine, sql)
        return seconds

    def _run(self, engine: Engine, sql: str) -> None:
        order = {
            "sql": sql,
            "allowed": EVERYTHING,
            "max_rows": 200,
            "max_bytes": 10**6,
            "truncate": True,
            "as_text": True,
        }
        code = ""
        try:
            answer = str(engine.run(Running(), order, lambda: None))
            self.ran += 1
        except EngineError as error:
            answer, code = str(error), error.code
        if code:
            assert code in ("sql", "timeout", "memory"), f"{code}: {answer}"
            assert len(answer.splitlines()) == 1, answer
            assert len(answer) < 720, answer
            assert not HIDDEN.search(answer), answer
        assert SECRET not in answer
        assert str(self._folder) not in answer
        if self.ran % 500 == 499:
            engine.run(Running(), {**order, "sql": f"DELETE FROM {QUEUE}"}, lambda: None)
            assert engine.run(Running(), {"catalogue": True}, lambda: None) == self._catalogue

    def close(self) -> None:
        self._connection.close()
        if self._engine is not None:
            self._engine.close()

    def check_result(self, text: str, kind: str) -> None:
        """`text` was let pass as a statement of this kind."""
        try:
            parsed = self._connection.extract_statements(text)
        except duckdb.Error:
            return  # the engine will not run it either
        assert len(parsed) == 1, f"{len(parsed)} statements: {text!r}"
        found = str(parsed[0].type).rsplit(".", 1)[-1].split("_")[0].lower()
        assert found == kind, f"{found}, not {kind}: {text!r}"
        if kind == "select":
            self._only_known_tables(text)

    def _only_known_tables(self, text: str) -> None:
        for path, function in self._sources(text):
            assert not function or path[0] in TABLE_FUNCTIONS, f"{path[0]}() is read: {text!r}"
            quoted = ".".join(f'"{part}"' for part in path)
            named = len(path) == 1 and path[0].lower() not in self._views  # by a WITH, or it does not exist
            assert function or named or quoted in TABLE_NAMES or quoted in self._system, f"{path} is read: {text!r}"
        try:
            names = self._connection.get_table_names(text, qualified=True)
        except duckdb.Error:
            return
        for name in names:
            name = name.split(" AS ")[0]  # the engine names a table with its alias here
            quoted = ".".join(f'"{part.strip(chr(34))}"' for part in name.split("."))
            assert quoted in TABLE_NAMES or quoted in self._system, f"{name} is read: {text!r}"

    def _sources(self, text: str) -> list[tuple[list[str], bool]]:
        """Names of all tables, and of the table functions, by the engine's parse: it leaves out its own below."""
        row = self._connection.execute("SELECT json_serialize_sql(?)", [text]).fetchone()
        found: list[tuple[list[str], bool]] = []
        pending = [json.loads(row[0])] if row else []
        while pending:
            node = pending.pop()
            if isinstance(node, dict) and node.get("type") == "BASE_TABLE":
                found.append((node["qualified_name"]["path"], False))
            elif isinstance(node, dict) and node.get("type") == "TABLE_FUNCTION":
                found.append(([node["function"]["function_name"].lower()], True))
            pending += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        return found


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
    st.integers(0, 10**9).map(lambda number: _mutation(Random(number))),
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
            b'{"query":"SELECT @p","parameters":{"p":1e999}}',
            b'{"query":"DELETE FROM x WHERE a = @p","parameters":[{"p":-1e999}]}',
        ]
    )
    return st.one_of(encoded, odd, st.binary(max_size=60))


#: Codes of an error object; INTERNAL_ERROR would be a fault of ours.
CODES = {"INVALID_REQUEST"}
HIDDEN = re.compile(
    r"Traceback|ctxbench-serve|site-packages|\.duckdb\b|\.py\b|internal error|Stack Trace|_ZN\d|<Token|object at"
)


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
