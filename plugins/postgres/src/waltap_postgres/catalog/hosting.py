"""Services that host PostgreSQL, and their switches for logical decoding.

There a user cannot write ``postgresql.conf`` and is no superuser, so each remedy names the service's
own switch. Source: the services' public documentation, which docs/howto/clouds.md names. Nothing was
run on them.
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
    """Describe one hosting service.

    One setting, role, schema or function of the service is enough to recognise a server.
    """

    name: str
    # Objects that only the service's servers have.
    settings: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    # Pattern of the servers' names, for servers without such objects.
    hosts: str | None = None
    # Instruction that sets ``wal_level`` to logical.
    switch: str
    # The service's own setting behind ``switch``, if it has one.
    switched_by: str | None = None
    # Instruction that puts ``switch`` into effect.
    restart: str = "restart the server"
    # The place of other settings.
    where: str
    # Role whose members grant, and publish as superusers do; empty if there is none.
    admin: str
    # Role whose members may replicate.
    granted: str | None = None
    # The service's rule for slots that an operator must know.
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

# In the order of the search: some services run on others and have the other's objects too.
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
    """Describe the service that hosts a server."""

    service: HostedService
    # The evidence for the service, for an operator.
    told_by: str
    # The service's own settings on this server.
    settings: dict[str, str] = field(default_factory=dict)

    def wal_level_remedy(self) -> str:
        """Return the instruction that sets ``wal_level`` to logical."""
        service = self.service
        name = service.switched_by
        # The switch is on, but the server has not restarted since.
        if name is not None and self.settings.get(name, "").lower() in ON:
            return f"On {service.name}: {name} is on already: {service.restart}, it waits for that"
        return f"On {service.name}: {service.switch}"

    def set(self, setting: str) -> str:
        """Return the instruction for a setting ``name = value``."""
        return f"On {self.service.name}, set {setting} {self.service.where}"

    def checks(self) -> Iterator[PreflightCheck]:
        """Yield the check that reports the service and its rule for slots."""
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
    """Return the service that hosts a server, None if unknown.

    ``host`` is the name in the profile. Raises: SourceError.
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
    with suppress(WaltapError):  # a server may hide a setting from this role
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
    # The name counts only if the server has none of the services' objects.
    for service in SERVICES:
        for each in host.split(","):
            name = each.strip().rstrip(".")
            if service.hosts is not None and re.search(service.hosts, name, re.IGNORECASE):
                return ServerHosting(service=service, told_by=f"its name {name}")
    return None
