"""Translate options of the JDBC driver in Debezium's files to libpq's.

Source: pgjdbc 42.7, "Connection parameters"; PostgreSQL 18, "Parameter Key Words" of libpq.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

TARGETS: Final = {
    "any": "any",
    "primary": "primary",
    "master": "primary",
    "secondary": "standby",
    "slave": "standby",
    "prefersecondary": "prefer-standby",
    "preferslave": "prefer-standby",
}
TRUE: Final = frozenset({"true", "on", "yes", "1", ""})

Equivalent = Callable[[str], dict[str, str]]


def _same(name: str) -> Equivalent:
    return lambda value: {name: value}


def _seconds(name: str, factor: int = 1) -> Equivalent:
    def of(value: str) -> dict[str, str]:
        if not re.fullmatch(r"\s*\d{1,7}\s*", value):
            raise ValueError("a whole number of seconds")
        return {name: str(int(value) * factor)} if int(value) else {}

    return of


def _target(value: str) -> dict[str, str]:
    found = TARGETS.get(value.strip().casefold())
    if found is None:
        raise ValueError(
            "libpq's driver.target_session_attrs takes any, primary, standby, prefer-standby, read-write "
            "and read-only"
        )
    return {"target_session_attrs": found}


def _balance(value: str) -> dict[str, str]:
    return {"load_balance_hosts": "random" if value.strip().casefold() in TRUE else "disable"}


def _gss(value: str) -> dict[str, str]:
    word = value.strip().casefold()
    return {"gssencmode": "prefer" if word == "allow" else word}


# Option of the JDBC driver → libpq's parameters with its value.
EQUIVALENT: Final[Mapping[str, Equivalent]] = {
    "ApplicationName": _same("application_name"),
    "applicationName": _same("application_name"),
    "channelBinding": _same("channel_binding"),
    "connectTimeout": _seconds("connect_timeout"),
    "gssEncMode": _gss,
    "kerberosServerName": _same("krbsrvname"),
    "loadBalanceHosts": _balance,
    "loginTimeout": _seconds("connect_timeout"),
    "requireAuth": _same("require_auth"),
    "socketTimeout": _seconds("tcp_user_timeout", 1000),
    "sslNegotiation": _same("sslnegotiation"),
    "targetServerType": _target,
    "tcpKeepAlive": lambda value: {"keepalives": str(int(value.strip().casefold() in TRUE))},
}

# Options of parts that only Java has: statement caches, result sets, class loaders, JAAS, its log.
NEEDLESS: Final = frozenset(
    {
        *("adaptiveFetch", "adaptiveFetchMaximum", "adaptiveFetchMinimum", "defaultRowFetchSize"),
        *("allowEncodingChanges", "assumeMinServerVersion", "protocolVersion", "preferQueryMode"),
        *("autosave", "cleanupSavepoints", "readOnlyMode", "escapeSyntaxCallMode", "stringtype"),
        *("binaryTransfer", "binaryTransferDisable", "binaryTransferEnable", "unknownLength"),
        *("cancelSignalTimeout", "gssResponseTimeout", "sslResponseTimeout", "hostRecheckSeconds"),
        *("classLoaderStrategy", "connectExecutor", "connectExecutorArg", "groupStartupParameters"),
        *("convertBooleanToNumeric", "quoteReturningIdentifiers", "disableColumnSanitiser"),
        *("databaseMetadataCacheFields", "databaseMetadataCacheFieldsMiB", "flushCacheOnDdl"),
        *("hideUnprivilegedObjects", "logServerErrorDetail", "logUnclosedConnections"),
        *("loggerFile", "loggerLevel", "maxResultBuffer", "maxSendBufferSize", "pemKeyAlgorithm"),
        *("preparedStatementCacheQueries", "preparedStatementCacheSizeMiB", "prepareThreshold"),
        *("receiveBufferSize", "sendBufferSize", "reWriteBatchedInserts", "tcpNoDelay"),
        *("reWriteBatchedInsertsSize", "scramMaxIterations", "useSpnego", "gssUseDefaultCreds"),
        *("jaasApplicationName", "jaasLogin", "sspiServiceClass", "xmlFactoryFactory"),
    }
)

JAVA_CLASS: Final = "it names a Java class; "
REFUSED: Final[Mapping[str, str]] = {
    "authenticationPluginClassName": f"{JAVA_CLASS}a plugin's hook choose_password gives the password",
    "currentSchema": "write database.initial.statements=SET search_path TO …",
    "localSocketAddress": "libpq binds no local address",
    "queryTimeout": "write database.query.timeout.ms",
    "readOnly": "waltap makes slot and publication; read.only keeps incremental snapshots from writing",
    "socketFactory": f"{JAVA_CLASS}libpq opens the socket, and takes driver.hostaddr",
    "socketFactoryArg": f"{JAVA_CLASS}libpq opens the socket, and takes driver.hostaddr",
    "ssl": "write database.sslmode=verify-full",
    "sslfactoryarg": f"{JAVA_CLASS}database.sslmode, sslrootcert, sslcert and sslkey say how",
    "sslfactory": f"{JAVA_CLASS}database.sslmode, sslrootcert, sslcert and sslkey say how",
    "sslhostnameverifier": f"{JAVA_CLASS}database.sslmode=verify-full checks the name",
    "sslpasswordcallback": f"{JAVA_CLASS}write database.sslpassword",
    "PGDBNAME": "write database.dbname",
    "PGHOST": "write database.hostname",
    "PGPORT": "write database.port",
    "user": "write database.user",
    "password": "write database.password",
    "dbname": "write database.dbname",
    "replication": "waltap says which of its connections replicates",
}

# Names without a capital letter that may follow ``database.``; waltap has its own of the others.
OF_BOTH: Final = frozenset({"autosave", "stringtype", "service", "options", "gsslib"})

# Options that Debezium also passes to the driver as ``database.NAME``, and waltap does not declare.
OPTION_NAMES: Final = frozenset(
    {
        *EQUIVALENT,
        *NEEDLESS,
        *(name for name in REFUSED if not name.islower()),
        *OF_BOTH,
        *("socketFactoryArg", "sslfactoryarg", "sslhostnameverifier", "sslpasswordcallback"),
    }
) - {"tcpKeepAlive"}


def libpq_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return libpq's parameters for options.

    The options have their full names, ``driver.NAME`` or ``database.NAME``. libpq's own parameters,
    whose names have no capital letters, stay and win.
    """
    made: dict[str, str] = {}
    own: dict[str, str] = {}
    for full, value in given.items():
        name = full.partition(".")[2]
        if name in EQUIVALENT:
            made.update(EQUIVALENT[name](value))
        elif name not in NEEDLESS:
            own[name] = value
    return {**made, **own}


def refusal_of(full: str, value: str) -> str | None:
    """Return why an option is not supported, None if it is."""
    name = full.partition(".")[2]
    if name in REFUSED:
        return REFUSED[name]
    if name in EQUIVALENT:
        try:
            EQUIVALENT[name](value)
        except ValueError as error:
            return str(error)
        return None
    if name in NEEDLESS or name.islower():
        return None
    return "neither libpq nor the JDBC driver has such a parameter"
