"""What the user's service calls the seven tables: catalogs (connections) and schemas can be named in the environment.

==================  =================================================  =====================
system              variables                                          default
==================  =================================================  =====================
crm                 CDATA_CRM_CATALOG, CDATA_CRM_SCHEMA                CRM_System.Salesforce
warehouse           CDATA_WAREHOUSE_CATALOG, CDATA_WAREHOUSE_SCHEMA    Warehouse_System.WH_DATA
itsm                CDATA_ITSM_CATALOG, CDATA_ITSM_SCHEMA              ITSM_System.ServiceNow
==================  =================================================  =====================

The queue lies in the warehouse, unless REVIEW_QUEUE_TABLE names it in full.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import ConfigError
from .local.schema import TABLES, Table

__all__ = ["SYSTEMS", "SystemTable", "system_tables"]

#: Name of a system -> its catalog in `local.schema`.
SYSTEMS: Mapping[str, str] = {"crm": "CRM_System", "warehouse": "Warehouse_System", "itsm": "ITSM_System"}


@dataclass(frozen=True, slots=True)
class SystemTable:
    """One of the seven tables under the user's names. `path` is (catalog, schema, name)."""

    system: str
    table: Table
    path: tuple[str, str, str]

    @property
    def name(self) -> str:
        """`Catalog.Schema.Table`; in brackets where a part is no plain word."""
        return ".".join(self.path) if all(re.fullmatch(r"\w+", part) for part in self.path) else self.shown

    @property
    def shown(self) -> str:
        """`[Catalog].[Schema].[Table]`, for SQL and for messages."""
        return ".".join(f"[{part}]" for part in self.path)

    @property
    def is_queue(self) -> bool:
        return self.table.file is None


def system_tables(env: Mapping[str, str]) -> list[SystemTable]:
    """The seven tables in the order in which they are loaded. Raises `ConfigError` naming a variable with no usable
    name."""
    found = []
    for system, catalog in SYSTEMS.items():
        for table in TABLES:
            if table.catalog != catalog:
                continue
            prefix = f"CDATA_{system.upper()}"
            path = (_name(env, f"{prefix}_CATALOG", table.catalog), _name(env, f"{prefix}_SCHEMA", table.schema))
            full = (*path, table.name)
            if table.file is None and env.get("REVIEW_QUEUE_TABLE"):
                full = _queue(env["REVIEW_QUEUE_TABLE"])
            found.append(SystemTable(system, table, full))
    return found


def _name(env: Mapping[str, str], variable: str, default: str) -> str:
    name = env.get(variable) or default
    if not re.fullmatch(r"[^\[\]\"`\r\n]+", name):
        raise ConfigError(f"{variable}={name!r}: must be a plain name, without brackets or quotes; correct it")
    return name


def _queue(text: str) -> tuple[str, str, str]:
    from .verifier import quoted_table

    catalog, schema, name = re.findall(r"\[([^\]]+)\]", quoted_table(text))
    return (catalog, schema, name)
