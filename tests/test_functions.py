"""Every function of the installed engine is either named as allowed or refused for a reason that stands here."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import duckdb
import pytest
from attack_files import open_engine

from pytest_ctxbench.local import guard as guard_module
from pytest_ctxbench.local import lengths
from pytest_ctxbench.local.dialect import SqlError
from pytest_ctxbench.local.engine import Engine, EngineError, Running
from pytest_ctxbench.local.functions import ALLOWED_FUNCTIONS, TABLE_FUNCTIONS
from pytest_ctxbench.local.guard import Guard
from pytest_ctxbench.local.schema import TABLES

#: Why names are refused: what they have to do with, and rules for the names. Each name of the engine fits one of these
#: or is allowed.
REFUSED = {
    "files and what lies outside": r"""read_\w+|(?!variant)\w*parquet\w*|glob|sniff_csv|write_log|seq_scan
        |arrow_scan(_dumb)?|pandas_scan|python_\w+|copy_database|import_database|hive_partition_component|json_copy_\w+
        |st_\w+""",
    "settings, secrets, extensions, resources": r"""current_setting|getvariable|which_secret|(dis|en)able_\w+
        |(add|remove)_grammar_extension|extension_versions|(create|destroy)_external_resource
        |(de)?register_external_resource(_type)?|platform|user_agent|setseed|collations|verify_parallelism
        |get_block_size""",
    "the catalogue and storage": r"""duckdb_\w+|pragma_\w+|pg_(?!typeof|size_pretty)\w+|show(_\w+)?
        |database_(list|size)|functions|metadata_info|storage_info|table_info|summary|stats|vector_type|in_search_path
        |index_key|has_\w+_privilege|(col|obj|shobj)_description|format_(pg_)?type|map_(to_pg|type_id_to_pg)_oid
        |(force_)?checkpoint""",
    "the session and the machine": r"""current_(catalog|database|schemas?|role|user|query|(query|connection)_id)
        |current_transaction_id|user|session_user|version|inet_\w+|txid_current|alias|truncate_duckdb_logs
        |parse_duckdb_log_message""",
    "the real clock and waiting": r"""now|today|ago|current_date|current_local\w+|get_current_\w+|sleep_ms|uuidv7
        |transaction_timestamp""",
    "sequences": r"nextval|currval|setval",
    "other statements as text": r"query(_table)?|json_(de)?serialize_\w+|json_execute_serialized_sql",
    "the engine's inside": r"""__internal_\w+|__cast|__between|(icu_)?collate_\w+|icu_sort_key|icu_calendar_names
        |create_sort_key|\w+_byte_comparable|can_cast_implicitly|cast_to_type|replace_type|get_type|make_type
        |remap_struct|invoke|combine(_aggr)?|finalize|to_aggregate_state|array_to_string_comma_default
        |variant_(comparator|normalize|group_\w+|bytes_to_variant|to_parquet_variant)""",
    "memory by a number among the arguments": r"reservoir_quantile|approx_top_k",
    "a stack that a deep text overruns": r"json_contains",
    "tables that no model needs": r"json_(each|tree)|repeat_row|histogram_values|test_\w+",
}


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    opened = duckdb.connect(":memory:")
    yield opened
    opened.close()


def names_of(connection: duckdb.DuckDBPyConnection) -> set[str]:
    rows = connection.execute("SELECT DISTINCT lower(function_name) FROM duckdb_functions()").fetchall()
    return {str(name) for (name,) in rows}


def test_every_function_of_the_engine_is_of_exactly_one_class(connection: duckdb.DuckDBPyConnection) -> None:
    """A new version of the engine fails here, until somebody has looked at what is new in it."""
    classes = {
        name: [why for why, rule in REFUSED.items() if re.fullmatch(rule, name, re.X)]
        + (["allowed"] if name in ALLOWED_FUNCTIONS else [])
        for name in names_of(connection)
    }
    assert len(classes) > 1_000
    assert {name: found for name, found in classes.items() if len(found) != 1} == {}


def test_every_rule_of_refusal_fits_something(connection: duckdb.DuckDBPyConnection) -> None:
    names = names_of(connection)
    for why, rule in REFUSED.items():
        assert any(re.fullmatch(rule, name, re.X) for name in names), why


def test_an_allowed_name_exists_in_the_engine_or_is_our_own(connection: duckdb.DuckDBPyConnection) -> None:
    assert ALLOWED_FUNCTIONS - names_of(connection) == {"isnumeric", "isdate", "julianday", "quotename", "space"}
    assert names_of(connection) >= TABLE_FUNCTIONS


def test_allowed_macros_call_allowed_functions_alone(connection: duckdb.DuckDBPyConnection) -> None:
    """What a macro stands for is put in its place after the guard has looked."""
    names = names_of(connection)
    rows = connection.execute(
        "SELECT lower(function_name), lower(macro_definition) FROM duckdb_functions() WHERE function_type = 'macro'"
    ).fetchall()
    seen = 0
    for name, text in rows:
        if name in ALLOWED_FUNCTIONS:
            seen += 1
            called = set(re.findall(r"(\w+)\s*\(", str(text))) & names
            assert called <= ALLOWED_FUNCTIONS, name
            assert not re.search(r"\b(current_|from\s+(?!\()|localtime)", str(text)), (name, text)
    assert seen > 50


def test_no_other_function_is_called(connection: duckdb.DuckDBPyConnection) -> None:
    """Each in the places where a function may stand: in an expression, in FROM, as a window, with a schema, quoted."""
    guard = Guard(connection, TABLES)
    for name in sorted(names_of(connection) - ALLOWED_FUNCTIONS):
        for query in (
            f'SELECT "{name}"()',
            f"SELECT \"{name.upper()}\"('x', 1)",
            f'SELECT system.main."{name}"(1) OVER ()',
            f"SELECT abs(\"{name}\"('x'))",
            f"SELECT * FROM \"{name}\"('x')",
        ):
            with pytest.raises(SqlError):
                guard.check(connection.cursor(), query)
    for name in sorted(names_of(connection) - TABLE_FUNCTIONS):
        with pytest.raises(SqlError):
            guard.check(connection.cursor(), f'SELECT * FROM "{name}"(1)')


def test_what_stands_beside_the_arguments_of_a_table_function_is_looked_at(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    guard = Guard(connection, TABLES)
    for query in (
        "SELECT * FROM range(3 ORDER BY current_setting('x'))",
        "SELECT * FROM range(getvariable('x'))",
        "SELECT * FROM range(3) FILTER (WHERE current_setting('x') = 'a')",
        "SELECT * FROM unnest([1]) t(current_setting)",
        "SELECT * FROM range(abs(current_setting('x')))",
        "SELECT * FROM unnest((SELECT list(x) FROM duckdb_settings() t(x)))",
        "SELECT * FROM range(start := current_setting('x'))",
        "SELECT * FROM system.main.duckdb_settings()",
    ):
        row = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchone()
        if row is None or '"error":true' in row[0]:
            continue  # no query to the engine either
        if "t(current_setting)" in query:
            guard.check(connection.cursor(), query)  # only a name
            continue
        with pytest.raises(SqlError):
            guard.check(connection.cursor(), query)


ARGUMENTS = (
    "1",
    "'a'",
    "NULL",
    "x",
    "-1",
    "1e400",
    "''",
    "DATE '2026-01-01'",
    "INTERVAL 1 DAY",
    "(SELECT 1)",
    "[1]",
    "x + 1",
)


def test_any_call_of_an_allowed_function_is_decided(connection: duckdb.DuckDBPyConnection) -> None:
    """With too few or too many arguments, and of every kind: passed or refused, and nothing else."""
    guard = Guard(connection, TABLES)
    random = Random(0)
    looked_into = lengths._MEASURED | guard_module._CALLING | {"age"}
    others = random.sample(sorted(n for n in ALLOWED_FUNCTIONS - looked_into if n.isidentifier()), 40)
    for name in [*sorted(looked_into), *others]:
        for count in range(5):
            given = ", ".join(random.choice(ARGUMENTS) for _ in range(count))
            for query in (f"SELECT {name}({given}), repeat('a', {name}({given}))", f"SELECT * FROM {name}({given})"):
                with contextlib.suppress(SqlError):
                    guard.check(connection.cursor(), query)


def test_what_the_engine_does_not_list_is_refused_with_a_hint(connection: duckdb.DuckDBPyConnection) -> None:
    guard = Guard(connection, TABLES)
    with pytest.raises(SqlError, match='the function regexp_mathes does not exist; did you mean "regexp_matches"'):
        guard.check(connection.cursor(), "SELECT regexp_mathes('a', 'b')")
    with pytest.raises(SqlError, match=r"does not exist$"):
        guard.check(connection.cursor(), "SELECT load_aws_credentials()")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    opened = open_engine(tmp_path)
    yield opened
    opened.close()


def value(engine: Engine, expression: str) -> object:
    order = {"sql": f"SELECT {expression}", "allowed": ("select",), "max_rows": 10, "max_bytes": 10**5}
    return engine.run(Running(), order, lambda: None)["rows"][0][0]


@pytest.mark.parametrize(
    "expression",
    ["user", "USER", '"user"', "current_database()", "now", "today", "localtime", "current_catalog", "sysdate"],
)
def test_names_that_the_engine_knows_by_itself(engine: Engine, expression: str) -> None:
    with pytest.raises(EngineError):
        value(engine, expression)


def test_a_column_may_be_called_user(engine: Engine) -> None:
    assert value(engine, "user FROM (SELECT 'a' AS user) t WHERE user = 'a' ORDER BY user") == "a"
    assert value(engine, "user FROM (VALUES ('b')) t(user)") == "b"


def test_an_age_counts_from_the_frozen_clock(engine: Engine) -> None:
    assert value(engine, "AGE(DATE '2026-07-15') = INTERVAL '1 day'") is True
    assert value(engine, "AGE(DATE '2026-07-17', DATE '2026-07-15') = INTERVAL '2 days'") is True
    with pytest.raises(EngineError, match="AGE takes two dates"):
        value(engine, "system.main.age(DATE '2026-07-15')")
