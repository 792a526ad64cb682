"""Services that host PostgreSQL: by what a server tells that it is one of theirs, and what each calls the
switches that logical decoding needs. There is no ``postgresql.conf`` to write, and nobody is a superuser.

Source: the services' public documentation, which docs/howto/clouds.md names. Nothing was run on them.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from waltap.errors import WaltapError
from waltap.source.connector import PreflightCheck
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.grants import quoted

__all__ = ["SERVICES", "HostedService", "ServerHosting", "hosting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedService:
    """``settings``, ``roles``, ``schemas``, ``functions``: what only its servers have, one of them is
    enough; ``hosts``: names of its servers, which count where a server tells nothing.

    ``switch`` brings ``wal_level`` to logical; ``switched_by`` is the setting that this needs, where it
    has a name of its own, and ``restart`` what makes it hold. ``where`` other settings are set. ``admin``
    is the role whose members grant, and publish as superusers do, empty: nobody may; ``granted``: a role
    whose members may replicate. ``mind`` is what to know of slots there.
    """

    name: str
    settings: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    hosts: str | None = None
    switch: str
    switched_by: str | None = None
    restart: str = "restart the server"
    where: str
    admin: str
    granted: str | None = None
    mind: str | None = None

    def grant(self, user: str) -> str:
        """Return the SQL after which ``user`` may replicate."""
        if self.granted is not None and self.granted.startswith("rds_"):
            return f"GRANT {self.granted} TO {quoted(user)}"
        return f"ALTER ROLE {quoted(user)} WITH REPLICATION"


AMAZON = {
    "switched_by": "rds.logical_replication",
    "admin": "rds_superuser",
    "granted": "rds_replication",
}
GOOGLE = "flag {flag} = on, and the instance restarts (setting flags replaces all that were set)"

SERVICES = (
    HostedService(
        name="Heroku Postgres",
        schemas=("heroku_ext",),
        switch="Heroku Postgres offers no logical replication: move the database, or capture from a copy "
        "of it elsewhere",
        where="by Heroku's support",
        admin="",
    ),
    HostedService(
        name="Amazon Aurora",
        functions=("aurora_version",),
        hosts=r"\.cluster-(?:ro-|custom-)?[a-z0-9]+\.[a-z0-9-]+\.rds\.amazonaws\.com(?:\.cn)?$",
        switch="in the cluster's own DB cluster parameter group: rds.logical_replication = 1; then reboot "
        "the writer",
        restart="reboot the writer",
        where="in the DB cluster parameter group",
        **AMAZON,  # type: ignore[arg-type]
    ),
    HostedService(
        name="Amazon RDS",
        settings=("rds.logical_replication",),
        roles=("rds_superuser", "rds_replication", "rdsadmin"),
        hosts=r"\.rds\.amazonaws\.com(?:\.cn)?$",
        switch="in the instance's own DB parameter group: rds.logical_replication = 1; then reboot the "
        "instance",
        restart="reboot the instance",
        where="in the DB parameter group",
        **AMAZON,  # type: ignore[arg-type]
    ),
    HostedService(
        name="Azure Database for PostgreSQL",
        settings=("azure.extensions",),
        roles=("azure_pg_admin", "azuresu"),
        hosts=r"\.postgres\.database\.(?:azure\.com|chinacloudapi\.cn|usgovcloudapi\.net)$",
        switch="server parameter wal_level = logical, in the portal or with `az postgres "
        "flexible-server parameter set`; then restart the server",
        where="as a server parameter",
        admin="azure_pg_admin",
    ),
    HostedService(
        name="Google AlloyDB",
        settings=("alloydb.logical_decoding",),
        roles=("alloydbsuperuser", "alloydbadmin"),
        switch=f"of the primary: {GOOGLE.format(flag='alloydb.logical_decoding')}",
        switched_by="alloydb.logical_decoding",
        restart="restart the primary",
        where="as a flag of the instance",
        admin="alloydbsuperuser",
    ),
    HostedService(
        name="Google Cloud SQL",
        settings=("cloudsql.logical_decoding",),
        roles=("cloudsqlsuperuser", "cloudsqladmin"),
        switch=GOOGLE.format(flag="cloudsql.logical_decoding"),
        switched_by="cloudsql.logical_decoding",
        restart="restart the instance",
        where="as a flag of the instance",
        admin="cloudsqlsuperuser",
    ),
    HostedService(
        name="Supabase",
        roles=("supabase_admin",),
        hosts=r"\.supabase\.(?:co|com)$",
        switch="wal_level is logical there as it comes: ask the support why this server's is not",
        where="with `supabase postgres-config`",
        admin="postgres",
    ),
    HostedService(
        name="Neon",
        settings=("neon.timeline_id",),
        roles=("neon_superuser",),
        hosts=r"\.neon\.tech$",
        switch="in the console, project settings, Logical Replication: Enable, which restarts all "
        "computes and cannot be taken back",
        where="by Neon's support",
        admin="neon_superuser",
        granted="neon_superuser",
        mind="a slot that nobody reads for about 40 hours is removed, and restoring a branch removes all: "
        "a pipeline that was down for so long has a gap",
    ),
)
"""In the order in which they are looked for: some run on others, and have what tells of those, too."""

FACTS_SQL = """
SELECT ARRAY(SELECT rolname::text FROM pg_roles WHERE rolname = ANY(%s)),
       ARRAY(SELECT nspname::text FROM pg_namespace WHERE nspname = ANY(%s)),
       ARRAY(SELECT DISTINCT proname::text FROM pg_proc WHERE proname = ANY(%s))
"""
SETTINGS_SQL = """
SELECT name, current_setting(name, true) FROM unnest(%s::text[]) name
 WHERE current_setting(name, true) IS NOT NULL
"""
ON = frozenset({"on", "1", "true", "yes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHosting:
    """The service that a server belongs to, by what it was told, and the service's own settings."""

    service: HostedService
    told_by: str
    settings: dict[str, str] = field(default_factory=dict)

    def wal_level_remedy(self) -> str:
        """Return what brings ``wal_level`` to logical."""
        service = self.service
        name = service.switched_by
        if name is not None and self.settings.get(name, "").lower() in ON:
            return f"On {service.name}: {name} is on already: {service.restart}, it waits for that"
        return f"On {service.name}: {service.switch}"

    def set(self, setting: str) -> str:
        """Return how a setting of PostgreSQL, ``name = value``, is made."""
        return f"On {self.service.name}, set {setting} {self.service.where}"

    def checks(self) -> Iterator[PreflightCheck]:
        """Tell what the server is, and what to know of slots there."""
        service = self.service
        found = f"{service.name}, told by {self.told_by}"
        if service.mind is None:
            yield PreflightCheck(name="hosted by", verdict="ok", found=found)
            return
        yield PreflightCheck(
            name="hosted by",
            verdict="warning",
            found=f"{found}: {service.mind}",
            remedy="Watch that the pipeline runs, and repair a gap with `waltap repair FILE`",
        )


def hosting(catalogue: PostgresCatalogue, host: str) -> ServerHosting | None:
    """Return the service that hosts a server, which is connected to as ``host``; None: none is known.

    Raises: SourceError.
    """
    ((roles, schemas, functions),) = catalogue.query(
        FACTS_SQL,
        tuple(
            sorted({name for service in SERVICES for name in getattr(service, kind)})
            for kind in ("roles", "schemas", "functions")
        ),
    )
    settings: dict[str, str] = {}
    names = sorted({name for service in SERVICES for name in service.settings})
    with suppress(WaltapError):  # a server may keep a setting to itself
        settings = dict(catalogue.query(SETTINGS_SQL, (names,)))
    there = {"setting": settings, "role": roles, "schema": schemas, "function": functions}
    for service in SERVICES:
        own = {
            "setting": service.settings, "role": service.roles, "schema": service.schemas,
            "function": service.functions,
        }  # fmt: skip
        for kind, wanted in own.items():
            found = next((name for name in wanted if name in there[kind]), None)
            if found is not None:
                return ServerHosting(service=service, told_by=f"{kind} {found}", settings=settings)
    for service in SERVICES:
        for each in host.split(","):
            name = each.strip().rstrip(".")
            if service.hosts is not None and re.search(service.hosts, name, re.IGNORECASE):
                return ServerHosting(service=service, told_by=f"its name {name}")
    return None
