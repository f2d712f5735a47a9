"""Looking around with the metadata tools, for policies that know nothing about the data."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from .conversation import Move, Result
from .offered import Tools
from .tables import read_rows

__all__ = ["SeenTable", "explore"]


@dataclass(frozen=True, slots=True)
class SeenTable:
    """A table and its columns as the metadata tools list them."""

    name: str  # catalog.schema.table
    columns: tuple[str, ...]


def _pick(row: dict[str, str], what: str) -> str:
    """The value that names a `what` (catalog, schema, table, column) in a metadata row."""
    plain = {"".join(c for c in key.lower() if c.isalnum()): value for key, value in row.items()}
    for key in (f"{what}name", what, f"table{what}", "name"):
        if plain.get(key):
            return plain[key]
    return next((v for k, v in plain.items() if what in k), next(iter(plain.values()), ""))


def explore(tools: Tools) -> Generator[Move, tuple[Result, ...], list[SeenTable]]:
    """Catalogs, then schemas, tables and columns: at most four turns. System schemas are passed over."""
    if not all(purpose in tools for purpose in ("catalogs", "schemas", "tables", "columns")):
        return []
    (listed,) = yield Move(thinking="First I look at what there is.", calls=(tools.call("catalogs"),))
    catalogs = list(dict.fromkeys(_pick(r, "catalog") for r in read_rows(listed.text)))
    if not catalogs:
        return []
    results = yield Move(calls=tuple(tools.call("schemas", catalog=c) for c in catalogs))
    schemas = [
        (catalog, schema)
        for catalog, result in zip(catalogs, results, strict=False)
        for schema in dict.fromkeys(_pick(r, "schema") for r in read_rows(result.text))
        if schema.lower() != "information_schema"
    ]
    if not schemas:
        return []
    results = yield Move(calls=tuple(tools.call("tables", catalog=c, schema=s) for c, s in schemas))
    names = [
        (catalog, schema, table)
        for (catalog, schema), result in zip(schemas, results, strict=False)
        for table in dict.fromkeys(_pick(r, "table") for r in read_rows(result.text))
    ]
    if not names:
        return []
    results = yield Move(calls=tuple(tools.call("columns", catalog=c, schema=s, table=t) for c, s, t in names))
    return [
        SeenTable(".".join(name), tuple(dict.fromkeys(_pick(r, "column") for r in read_rows(result.text))))
        for name, result in zip(names, results, strict=False)
    ]
