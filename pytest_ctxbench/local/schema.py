"""The seven tables as the endpoint exposes them (design 2), and which CSV column each of their columns comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_ctxbench.dataset import KINDS, REQUIRED

__all__ = ["CATALOGS", "HOME_PREFIX", "TABLES", "Column", "Table", "database_files", "tables_for"]

#: What the name of a server's folder of databases begins with, in the system's folder for temporary files; then
#: follow the server's process id and a hyphen.
HOME_PREFIX = "ctxbench-serve-"

CATALOGS = ("CRM_System", "Warehouse_System", "ITSM_System")

_SQL_TYPES = {
    "text": "VARCHAR",
    "whole": "BIGINT",
    "number": "DECIMAL(18,4)",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
}


@dataclass(frozen=True, slots=True)
class Column:
    """`source` is the CSV column that it is loaded from, None for a column that the system fills itself.

    `generated`: an INSERT may not name it. `nullable` as the metadata tools report it.
    """

    name: str
    sql_type: str
    source: str | None
    generated: bool = False
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """`file` is the CSV of the dataset, None for the queue, which starts empty."""

    catalog: str
    schema: str
    name: str
    file: str | None
    columns: tuple[Column, ...]

    @property
    def path(self) -> tuple[str, str, str]:
        return (self.catalog, self.schema, self.name)

    @property
    def quoted(self) -> str:
        """The three-part name in double quotes."""
        return ".".join(f'"{part}"' for part in self.path)

    @property
    def shown(self) -> str:
        """The three-part name as messages show it."""
        return ".".join(f"[{part}]" for part in self.path)


def _from_csv(
    catalog: str, schema: str, name: str, file: str, renamed: Mapping[str, str], lead: tuple[Column, ...] = ()
) -> Table:
    columns = tuple(
        Column(renamed.get(source, source), _SQL_TYPES[kind], source) for source, kind in KINDS[file].items()
    )
    return Table(catalog, schema, name, file, lead + columns)


TABLES: tuple[Table, ...] = (
    _from_csv(
        "CRM_System",
        "Salesforce",
        "Account",
        "crm_accounts.csv",
        {"Id": "Ext_Account_Id__c"},
        (Column("Id", "VARCHAR", None),),
    ),
    _from_csv("CRM_System", "Salesforce", "Contact", "crm_contacts.csv", {}),
    _from_csv("Warehouse_System", "WH_DATA", "DIM_ACCOUNT", "warehouse_dim_account.csv", {}),
    _from_csv("Warehouse_System", "WH_DATA", "TELEMETRY_EVENTS", "warehouse_telemetry_events.csv", {}),
    Table(
        "Warehouse_System",
        "WH_DATA",
        "REVIEW_QUEUE",
        None,
        (
            Column("ID", "BIGINT", None, generated=True, nullable=False),
            Column("ACCOUNT_NAME", "VARCHAR", None),
            Column("REASON", "VARCHAR", None),
            Column("QUEUED_AT", "TIMESTAMP", None),
        ),
    ),
    _from_csv(
        "ITSM_System",
        "ServiceNow",
        "u_bm_company",
        "itsm_companies.csv",
        {source: f"u_{source}" for source in KINDS["itsm_companies.csv"]},
    ),
    _from_csv(
        "ITSM_System",
        "ServiceNow",
        "u_bm_incident",
        "itsm_incidents.csv",
        {source: f"u_{source}" for source in KINDS["itsm_incidents.csv"]} | {"company_name": "u_company"},
    ),
)


def tables_for(headers: Mapping[str, Iterable[str]]) -> tuple[Table, ...]:
    """The tables of a dataset whose files have these columns: optional columns that a file lacks are left out."""
    out = []
    for table in TABLES:
        if table.file is None:
            out.append(table)
            continue
        present = set(headers[table.file]) | set(REQUIRED[table.file])
        kept = tuple(c for c in table.columns if c.source is None or c.source in present)
        out.append(Table(table.catalog, table.schema, table.name, table.file, kept))
    return tuple(out)


def database_files(folder: Path) -> dict[str, Path]:
    """Catalog -> its database file in `folder`."""
    return {catalog: folder / f"{catalog}.duckdb" for catalog in CATALOGS}
