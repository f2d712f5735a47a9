"""Statements that a model may well write, made up: they know the tables, their columns and types.

Most of them run. That is what makes them good for fuzzing: only what passes can pass wrongly, and `hostile` puts one
thing that may not pass into a statement that is right everywhere else.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from random import Random

from attack_files import QUEUE

from pytest_ctxbench.local.schema import TABLES, Table

KINDS = ("text", "number", "date", "bool")


def _kind(sql_type: str) -> str:
    if sql_type == "VARCHAR":
        return "text"
    return "date" if sql_type in ("DATE", "TIMESTAMP") else "number"


@dataclass
class Source:
    """Something in FROM: `text` as it is written there, and its columns: (name, kind)."""

    alias: str
    text: str
    columns: list[tuple[str, str]]


@dataclass
class Scope:
    """What may be named at a place of a statement. `ctes` are the queries that WITH has named."""

    random: Random
    sources: list[Source] = field(default_factory=list)
    ctes: list[Source] = field(default_factory=list)
    made: list[int] = field(default_factory=lambda: [0])

    def new(self, prefix: str) -> str:
        self.made[0] += 1
        return f"{prefix}{self.made[0]}"

    def inner(self) -> Scope:
        return Scope(self.random, [], self.ctes, self.made)


def _quoted(random: Random, name: str) -> str:
    style = random.randrange(5)
    if style == 0:
        return f"[{name}]"
    if style == 1:
        return f'"{name}"'
    if style == 2 and name.isascii():
        return random.choice([name.upper(), name.lower()])
    return name


def _path(random: Random, table: Table) -> str:
    style = random.randrange(4)
    if style == 0:
        return ".".join(table.path)
    if style == 1:
        return ".".join(f'"{part}"' for part in table.path)
    return table.shown


def _literal(random: Random, kind: str) -> str:
    if kind == "text":
        return random.choice(
            [
                "'a'",
                "''",
                "'Open'",
                "'it''s'",
                "N'é'",
                "'%a%'",
                "'EMEA'",
                "'2026-01-01'",
                "'🙂'",
                "'--'",
                "'/* x */'",
                "'; DROP TABLE x'",
            ]
        )
    if kind == "number":
        return random.choice(["0", "1", "-1", "2", "10", "100", "3.5", "1e3", "0.25", "365", "2147483647"])
    if kind == "bool":
        return random.choice(["1 = 1", "TRUE", "1 <> 0", "FALSE"])
    return random.choice(
        [
            "GETDATE()",
            "CURRENT_DATE",
            "CURRENT_TIMESTAMP",
            "CAST('2026-01-31' AS DATE)",
            "DATE '2025-02-28'",
            "TIMESTAMP '2026-01-01 12:30:00'",
            "DATEFROMPARTS(2026, 2, 3)",
            "NOW()",
        ]
    )


def _column(scope: Scope, kind: str) -> str:
    found = [(s.alias, name) for s in scope.sources for name, its in s.columns if its == kind]
    if not found:
        return _literal(scope.random, kind)
    alias, name = scope.random.choice(found)
    return f"{_quoted(scope.random, alias)}.{_quoted(scope.random, name)}"


def expression(scope: Scope, kind: str, depth: int = 3) -> str:
    """An expression of `kind` that names nothing but what `scope` has."""
    random = scope.random
    if depth <= 0 or random.random() < 0.25:
        return _literal(random, kind) if random.random() < 0.3 else _column(scope, kind)

    def text() -> str:
        return expression(scope, "text", depth - 1)

    def number() -> str:
        return expression(scope, "number", depth - 1)

    def date() -> str:
        return expression(scope, "date", depth - 1)

    def test() -> str:
        return expression(scope, "bool", depth - 1)

    def same() -> str:
        return expression(scope, kind, depth - 1)

    unit = random.choice(["day", "month", "year", "week", "quarter", "hour"])
    shared = [
        lambda: f"CASE WHEN {test()} THEN {same()} ELSE {same()} END",
        lambda: f"COALESCE({same()}, {same()})",
        lambda: f"ISNULL({same()}, {same()})",
        lambda: f"NULLIF({same()}, {same()})",
        lambda: f"({same()})",
        lambda: f"GREATEST({same()}, {same()})",
        lambda: f"(SELECT {same()})",
        lambda: f"CHOOSE(2, {same()}, {same()})",
    ]
    makers = {
        "text": [
            lambda: f"UPPER({text()})",
            lambda: f"TRIM(LOWER({text()}))",
            lambda: f"{text()} + {text()}",
            lambda: f"{text()} || '-' || {text()}",
            lambda: f"CONCAT({text()}, {number()}, {date()})",
            lambda: f"SUBSTRING({text()}, 1, 3)",
            lambda: f"LEFT({text()}, 2)",
            lambda: f"RIGHT({text()}, 2)",
            lambda: f"REPLACE({text()}, 'a', {text()})",
            lambda: f"STUFF({text()}, 1, 1, 'x')",
            lambda: f"CAST({number()} AS VARCHAR(20))",
            lambda: f"CONVERT(VARCHAR(10), {date()}, 120)",
            lambda: f"FORMAT({date()}, 'yyyy-MM')",
            lambda: f"FORMAT({number()}, 'N2')",
            lambda: f"STR({number()}, 8, 1)",
            lambda: f"SPLIT_PART({text()}, '-', 1)",
            lambda: f"REGEXP_REPLACE({text()}, '[aeiou]+', '_', 'g')",
            lambda: f"REGEXP_EXTRACT({text()}, '([A-Z])[a-z]*', 1)",
            lambda: f"REVERSE({text()})",
            lambda: f"LPAD({text()}, 8, '0')",
            lambda: f"REPLICATE({text()}, 2)",
            lambda: f"MD5({text()})",
            lambda: f"JSON_OBJECT('a', {text()}) ->> '$.a'",
            lambda: f"DATENAME(month, {date()})",
            lambda: f"list_aggregate(list_value({text()}, {text()}), 'string_agg', ',')",
            lambda: f"array_to_string(list_transform(list_value({text()}), x -> upper(x)), ',')",
            lambda: f"struct_extract({{'k': {text()}}}, 'k')",
            lambda: f"IIF({test()}, {text()}, {text()})",
            lambda: f"TO_CHAR({date()}, 'YYYY-MM-DD')",
            lambda: f"QUOTENAME({text()})",
            lambda: f"typeof({number()})",
        ],
        "number": [
            lambda: f"{number()} + {number()}",
            lambda: f"{number()} - {number()}",
            lambda: f"{number()} * 2",
            lambda: f"{number()} * 1.0 / NULLIF({number()}, 0)",
            lambda: f"ABS({number()})",
            lambda: f"ROUND({number()}, 1)",
            lambda: f"LEN({text()})",
            lambda: f"CHARINDEX('a', {text()})",
            lambda: f"DATEDIFF({unit}, {date()}, {date()})",
            lambda: f"DATEPART({unit}, {date()})",
            lambda: f"YEAR({date()})",
            lambda: f"EXTRACT(MONTH FROM {date()})",
            lambda: f"TRY_CAST({text()} AS INT)",
            lambda: f"CAST({number()} AS DECIMAL(38, 4))",
            lambda: f"SIGN({number()})",
            lambda: f"CEILING({number()})",
            lambda: f"LEN({text()}) % 7",
            lambda: f"levenshtein({text()}, 'Acme')",
            lambda: f"list_sum(list_value({number()}, {number()}))",
            lambda: f"IIF({test()}, 1, 0)",
            lambda: f"CASE WHEN {test()} THEN 1 ELSE 0 END",
            lambda: f"jaro_winkler_similarity({text()}, 'Acme')",
            lambda: f"-({number()})",
            lambda: f"SQRT(ABS({number()}))",
            lambda: f"(SELECT COUNT(*) FROM {QUEUE})",
        ],
        "date": [
            lambda: f"DATEADD({unit}, {random.randrange(-9, 10)}, {date()})",
            lambda: f"CAST({date()} AS DATE)",
            lambda: f"DATE_TRUNC('{unit}', {date()})",
            lambda: f"EOMONTH({date()})",
            lambda: f"{date()} - INTERVAL '3' DAY",
            lambda: f"TRY_CAST({text()} AS DATE)",
            lambda: f"DATEADD(day, 1, DATETRUNC({unit}, {date()}))",
            lambda: f"TRY_CONVERT(DATE, {text()}, 23)",
            lambda: f"CAST({date()} AS TIMESTAMP)",
        ],
        "bool": [
            lambda: f"{number()} > {number()}",
            lambda: f"{text()} = {text()}",
            lambda: f"{date()} >= {date()}",
            lambda: f"{text()} LIKE {random.choice(_PATTERNS)}",
            lambda: f"{text()} ILIKE '%a%'",
            lambda: f"{text()} IN ('a', 'b', {text()})",
            lambda: f"{number()} BETWEEN 1 AND {number()}",
            lambda: f"{text()} IS NOT NULL",
            lambda: f"{date()} IS NULL",
            lambda: f"NOT ({test()})",
            lambda: f"({test()} AND {test()})",
            lambda: f"({test()} OR {test()})",
            lambda: f"REGEXP_MATCHES({text()}, '^[A-M]')",
            lambda: f"EXISTS ({query(scope.inner(), ['number'], depth - 2)})",
            lambda: f"{number()} IN ({query(scope.inner(), ['number'], depth - 2)})",
            lambda: f"{text()} NOT IN (SELECT ACCOUNT_NAME FROM {QUEUE} WHERE ACCOUNT_NAME IS NOT NULL)",
            lambda: f"{text()} SIMILAR TO 'A.*'",
            lambda: f"starts_with({text()}, 'A')",
            lambda: f"list_contains(list_value('a', {text()}), 'a')",
            lambda: f"{text()} IS DISTINCT FROM {text()}",
        ],
    }
    if kind == "bool":
        return random.choice(makers["bool"])()
    return random.choice(makers[kind] * 2 + shared)()


_PATTERNS = ["'A%'", "'%[a-c]%'", "'_b%'", "'%x\\_%' ESCAPE '\\'", "N'%é%'", "'%'"]


def _source(scope: Scope, depth: int) -> Source:
    random = scope.random
    kind = random.randrange(10)
    if kind == 0 and scope.ctes:
        known = random.choice(scope.ctes)
        alias = scope.new("c")
        return Source(alias, f"{_quoted(random, known.alias)} AS {alias}", known.columns)
    if kind <= 2 and depth > 0:
        kinds = [random.choice(KINDS[:3]) for _ in range(random.randint(1, 3))]
        alias = scope.new("s")
        text = query(scope.inner(), kinds, depth - 1, names=[f"k{n}" for n in range(len(kinds))])
        return Source(alias, f"({text}) AS {alias}", [(f"k{n}", its) for n, its in enumerate(kinds)])
    if kind == 3:
        alias = scope.new("v")
        rows = ", ".join(f"({_literal(random, 'number')}, {_literal(random, 'text')})" for _ in range(2))
        return Source(alias, f"(VALUES {rows}) AS {alias}(n, t)", [("n", "number"), ("t", "text")])
    if kind == 4:
        alias = scope.new("r")
        return Source(alias, f"{random.choice(['range', 'generate_series'])}(1, 5) AS {alias}(n)", [("n", "number")])
    table = random.choice(TABLES)
    alias = scope.new("t")
    return Source(
        alias,
        f"{_path(random, table)} {random.choice(['AS ', ''])}{alias}",
        [(c.name, _kind(c.sql_type)) for c in table.columns],
    )


def _aggregate(scope: Scope, kind: str, depth: int) -> str:
    random = scope.random

    def of(its: str) -> str:
        return expression(scope, its, depth)

    if kind == "number":
        return random.choice(
            [
                lambda: "COUNT(*)",
                lambda: f"COUNT(DISTINCT {of('text')})",
                lambda: f"SUM({of('number')})",
                lambda: f"AVG({of('number')})",
                lambda: f"MEDIAN({of('number')})",
                lambda: f"STDEV({of('number')})",
                lambda: f"COUNT(*) FILTER (WHERE {of('bool')})",
                lambda: f"SUM(CASE WHEN {of('bool')} THEN 1 ELSE 0 END)",
                lambda: f"PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY {of('number')})",
            ]
        )()
    if kind == "text":
        return random.choice(
            [
                lambda: f"MAX({of('text')})",
                lambda: f"STRING_AGG({of('text')}, ', ')",
                lambda: f"STRING_AGG({of('text')}, ';') WITHIN GROUP (ORDER BY {of('number')})",
                lambda: f"ANY_VALUE({of('text')})",
                lambda: f"MAX_BY({of('text')}, {of('number')})",
            ]
        )()
    return f"{random.choice(['MIN', 'MAX'])}({of(kind)})"


def _window(scope: Scope, kind: str, depth: int) -> str:
    random = scope.random
    over = f"PARTITION BY {expression(scope, 'text', depth)} ORDER BY {expression(scope, 'date', depth)}"
    if random.random() < 0.3:
        over += random.choice([" DESC", " ROWS BETWEEN 2 PRECEDING AND CURRENT ROW", " RANGE UNBOUNDED PRECEDING"])
    if kind != "number":
        name = random.choice(["LAG", "LEAD", "FIRST_VALUE", "LAST_VALUE"])
        return f"{name}({expression(scope, kind, depth)}) OVER ({over})"
    ranked = ["ROW_NUMBER()", "RANK()", "DENSE_RANK()", "NTILE(4)", "COUNT(*)", "PERCENT_RANK()"]
    if "ROWS" in over or "RANGE" in over:
        ranked = ["COUNT(*)", f"SUM({expression(scope, 'number', depth)})"]
    return f"{random.choice(ranked)} OVER ({over})"


def query(outer: Scope, kinds: list[str], depth: int = 2, names: list[str] | None = None, top: bool = False) -> str:
    """One query with columns of these kinds, called by `names`. Every one gives few rows."""
    random = outer.random
    depth = max(0, depth)
    names = names or [outer.new("a") for _ in kinds]
    if depth > 0 and random.random() < 0.12:
        glue = random.choice([" UNION ALL ", " UNION ", " EXCEPT ", " INTERSECT "])
        return glue.join(_select(outer.inner(), kinds, depth - 1, names, False) for _ in range(2))
    return _select(outer, kinds, depth, names, top)


def _select(scope: Scope, kinds: list[str], depth: int, names: list[str], top: bool) -> str:
    random = scope.random
    sources = [_source(scope, depth) for _ in range(random.choice([1, 1, 1, 2, 2, 3]) if depth else 1)]
    scope = Scope(random, [sources[0]], scope.ctes, scope.made)
    text = sources[0].text
    for source in sources[1:]:
        scope.sources.append(source)
        join = random.choice(["JOIN", "INNER JOIN", "LEFT JOIN", "LEFT OUTER JOIN", "FULL JOIN"])
        left, right = (_column(Scope(random, [s]), "text") for s in (scope.sources[0], source))
        text += f" {join} {source.text} ON {left} = {right} AND {_column(scope, 'number')} < 1"
    where = f" WHERE {expression(scope, 'bool', depth + 1)}" if random.random() < 0.6 else ""
    mode = random.randrange(4)
    if mode == 0:  # one group for each value of some columns
        keys = list(itertools.takewhile(lambda key: "." in key, (_column(scope, kind) for kind in kinds[:-1])))
        items = [*keys, *(_aggregate(scope, kind, depth) for kind in kinds[len(keys) :])]
        end = f" GROUP BY {', '.join(dict.fromkeys(keys))}" if keys else ""
        if end and random.random() < 0.4:
            end += f" HAVING {_aggregate(scope, 'number', depth)} > 1"
    elif mode == 1:
        items = [_window(scope, kind, depth) for kind in kinds]
        end = f" QUALIFY ROW_NUMBER() OVER (ORDER BY {_column(scope, 'number')}) <= 3" if random.random() < 0.4 else ""
    else:
        items, end = [expression(scope, kind, depth) for kind in kinds], ""
    listed = ", ".join(f"{item} AS {name}" for item, name in zip(items, names, strict=True))
    head = random.choice(["SELECT", "SELECT", "SELECT DISTINCT"])
    if not top:
        return f"{head} {listed} FROM {text}{where}{end}"
    if random.random() < 0.5:
        return f"{head} TOP {random.choice(['10', '(5)'])} {listed} FROM {text}{where}{end} ORDER BY 1"
    end += random.choice([" ORDER BY 1 DESC LIMIT 10", " ORDER BY 1 OFFSET 1 ROWS FETCH NEXT 3 ROWS ONLY", " LIMIT 7"])
    return f"{head} {listed} FROM {text}{where}{end}"


def usual(random: Random) -> str:
    """A statement that is right: mostly a SELECT, at times an INSERT or DELETE of the queue."""
    scope = Scope(random)
    start = ""
    if random.random() < 0.25:
        parts = []
        for number in range(random.randint(1, 2)):
            kinds = [random.choice(KINDS[:3]) for _ in range(2)]
            names = [f"w{n}" for n in range(2)]
            text = query(scope.inner(), kinds, 1, names)
            parts.append(f"q{number} AS ({text})")
            scope.ctes.append(Source(f"q{number}", "", list(zip(names, kinds, strict=True))))
        start = f"WITH {', '.join(parts)} "
    kind = random.randrange(12)
    if kind == 0:
        return f"{start}INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) {query(scope, ['text', 'text'], 1, top=True)}"
    if kind == 1:
        rows = ", ".join(f"({expression(Scope(random), 'text', 2)}, {_literal(random, 'text')})" for _ in range(2))
        return f"INSERT INTO {QUEUE} (ACCOUNT_NAME, REASON) VALUES {rows}"
    if kind == 2:
        queue = next(t for t in TABLES if t.name == "REVIEW_QUEUE")
        columns = [(c.name, _kind(c.sql_type)) for c in queue.columns]
        condition = expression(Scope(random, [Source("q", "", columns)]), "bool", 2)
        return f"DELETE FROM {QUEUE} AS q WHERE {condition}"
    kinds = [random.choice(KINDS[:3]) for _ in range(random.randint(1, 4))]
    text = query(scope, kinds, random.choice([1, 2, 2]), top=True)
    if kind == 3 and not start:
        return f"{random.choice(['DESCRIBE', 'SUMMARIZE'])} {text}"
    end = random.choice(["", "", "", ";", " ; ", " -- done", "\n/* done */"])
    return f"{start}{text}{end}"


#: One of them, in a statement that is right everywhere else, makes it wrong.
_BAD_VALUES = (
    "getenv('HOME')",
    "current_setting('temp_directory')",
    "version()",
    "current_user",
    "(SELECT COUNT(*) FROM glob('*'))",
    "(SELECT content FROM read_text('/etc/passwd'))",
    "(SELECT COUNT(*) FROM duckdb_settings())",
    "user",
    "pg_sleep(1)",
    "(SELECT 1 FROM '/etc/passwd')",
    "nextval('x')",
    "query('SELECT 1')",
    "json_serialize_sql('SELECT 1')",
    "txid_current()",
    "(SELECT MAX(name) FROM pg_catalog.pg_settings)",
    "(DELETE FROM x)",
    "current_query()",
    "getvariable('a')",
    "@@VERSION",
    "(SELECT name FROM duckdb_secrets())",
    "system.main.current_database()",
    "(SELECT sql FROM sqlite_master)",
    "(FROM read_blob('x') SELECT size)",
    "in_search_path('a', 'b')",
    "write_log('x')",
    "uuidv7()",
    "today()()",
)
_BAD_SOURCES = (
    "duckdb_tables() AS {}",
    "duckdb_tables AS {}",
    "pg_catalog.pg_class {}",
    "'/etc/passwd' AS {}",
    "read_csv('x.csv') {}",
    '"x.parquet" {}',
    "glob('/*') {}",
    "query('SELECT 1') AS {}",
    "(SHOW TABLES) {}",
    "pragma_database_list() {}",
    "information_schema.character_sets {}",
    "system.information_schema.tables {}",
    "sqlite_master {}",
    "memory.meta.tables {}",
    "(DELETE FROM x RETURNING *) {}",
    "repeat('x', 3) {}",
    "test_all_types() {}",
    "query_table('x') {}",
    "(DESCRIBE pg_class) {}",
    "read_text('/proc/self/environ') {}",
    "sniff_csv('x') {}",
    "json_execute_serialized_sql('x') {}",
    "s3://x {}",
    "temp.x {}",
)


_TOKENS = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|\[[^\]]*\]|\w+|\s+|.", re.S)


def mutated(random: Random, words: list[str]) -> str:
    """A statement that was right, with one to three of its words and signs left out, doubled, exchanged or replaced."""
    tokens = _TOKENS.findall(usual(random))
    for _ in range(random.randint(1, 3)):
        one, two = random.randrange(len(tokens)), random.randrange(len(tokens))
        kind = random.randrange(5)
        if kind == 0 and len(tokens) > 3:
            del tokens[one]
        elif kind == 1:
            tokens.insert(one, tokens[two])
        elif kind == 2:
            tokens[one], tokens[two] = tokens[two], tokens[one]
        elif kind == 3:
            tokens[one] = random.choice([tokens[two], random.choice(words)])
        else:
            one, two = sorted((one, two))
            tokens[one:two] = [f"({''.join(tokens[one:two])})"]
    return "".join(tokens)


def hostile(random: Random) -> str:
    """A statement that is right but for one thing in it, and may not pass. What it reads is never ours to read."""
    scope = Scope(random)
    inner = random.choice([0, 1, 2])
    bad = random.choice(_BAD_VALUES)
    if inner == 0:
        column = random.choice(
            [
                f"CASE WHEN {expression(scope, 'bool', 1)} THEN {bad} END",
                f"COALESCE({bad}, 'a')",
                bad,
                f"list_transform(range(2), x -> {bad})",
                f"MAX({bad}) OVER ()",
            ]
        )
        text = query(scope, ["text"], 1)
        return f"SELECT {column}, s.* FROM ({text}) s"
    if inner == 1:
        clause = random.choice(
            ["WHERE {} = 'a'", "ORDER BY {}", "GROUP BY 1 HAVING MAX({}) > 'a'", "LIMIT {}", "QUALIFY {} = 1"]
        )
        return f"SELECT s.k FROM ({query(scope, ['text'], 1, ['k'])}) s {clause.format(bad)}"
    source = random.choice(_BAD_SOURCES).format("z")
    glue = random.choice(
        ["FROM {}", "FROM (SELECT 1 AS a) t CROSS JOIN {}", "FROM (SELECT * FROM {}) y", "FROM (SELECT 1) t, {}"]
    )
    text = f"SELECT * {glue.format(source)}"
    return random.choice(
        [
            text,
            f"WITH w AS ({text}) SELECT * FROM w",
            f"SELECT 1 WHERE EXISTS ({text})",
            f"{text} UNION ALL {text}",
            f"INSERT INTO {QUEUE} (ACCOUNT_NAME) {text}",
            f"DELETE FROM {QUEUE} WHERE ID IN ({text})",
            f"DESCRIBE {text}",
        ]
    )
