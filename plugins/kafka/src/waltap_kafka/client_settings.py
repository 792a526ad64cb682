"""Settings of a client of librdkafka.

librdkafka's own names pass unchanged; names of Java clients are translated to their equivalents.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from waltap.base.redaction import looks_secret
from waltap.errors import ConfigurationError, PropertyProblem

# Java client's name → librdkafka's, where the value has the same meaning.
RENAMED: Final = {
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "compression.gzip.level": "compression.level",
    "compression.lz4.level": "compression.level",
    "compression.zstd.level": "compression.level",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "sasl.mechanism": "sasl.mechanisms",
}

# A Java client needs these settings; waltap does not: formats make the bytes, and a full queue
# waits.
NEEDLESS: Final = frozenset(
    {
        "key.serializer",
        "value.serializer",
        "key.deserializer",
        "value.deserializer",
        "max.block.ms",
        "enable.metrics.push",
        # Read with the location of the store.
        "ssl.keystore.type",
        "ssl.truststore.type",
    }
)

# Java's default places keys by murmur2, so librdkafka's equivalent keeps keys in their partitions.
PARTITIONERS: Final = {
    "org.apache.kafka.clients.producer.internals.defaultpartitioner": "murmur2_random",
    "org.apache.kafka.clients.producer.internals.builtinpartitioner": "murmur2_random",
    "org.apache.kafka.clients.producer.uniformstickypartitioner": "random",
    "org.apache.kafka.clients.producer.roundrobinpartitioner": "random",
}

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")

OAUTH_METHOD: Final = "sasl.oauthbearer.method"
JAAS: Final = re.compile(
    r'\s*[\w.]+(?:Plain|Scram|OAuthBearer)LoginModule\s+required\s+(?P<options>(?:\w+\s*=\s*"(?:[^"\\]|\\.)*"\s*)+);?\s*'
)
JAAS_OPTION: Final = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')
JAAS_NAMES: Final = {
    "username": "sasl.username",
    "password": "sasl.password",
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}


def client_settings(given: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return librdkafka's settings for ``given``.

    Its names are full property names that begin with ``prefix``. Raises: ConfigurationError with
    every setting that has no equivalent.
    """
    named = {full.removeprefix(prefix): value for full, value in given.items()}
    made: dict[str, str] = {}
    problems: list[PropertyProblem] = []
    for name, value in named.items():
        if name in NOT_THERE:
            problems.append(PropertyProblem(prefix + name, NOT_THERE[name]))
        elif name in SPECIAL:
            try:
                found = SPECIAL[name](value.strip(), named)
            except ValueError as error:
                problems.append(PropertyProblem(prefix + name, str(error)))
            else:
                made = {**found, **made}  # the first setting wins
        elif name not in NEEDLESS:
            made.setdefault(RENAMED.get(name, name), value)
    problems += _missing(made, prefix)
    if problems:
        raise ConfigurationError(problems)
    return made


def _missing(made: Mapping[str, str], prefix: str) -> list[PropertyProblem]:
    """Return the settings that a login still needs.

    librdkafka would complain about Kerberos, its default, or nothing.
    """
    protocol = made.get("security.protocol", "").strip().upper()
    if not protocol.startswith("SASL"):
        return []
    mechanism = made.get("sasl.mechanisms", "").strip().upper()
    if not mechanism:
        what = f"is missing: security.protocol={protocol} needs it"
        return [PropertyProblem(f"{prefix}sasl.mechanism", what, allowed=", ".join(MECHANISMS))]
    if mechanism == "OAUTHBEARER" and not made.keys() & {OAUTH_METHOD, "sasl.oauthbearer.config"}:
        what = f"is missing: sasl.mechanism={mechanism} needs it"
        return [PropertyProblem(prefix + OAUTH_METHOD, what, allowed="oidc")]
    if (mechanism == "PLAIN" or mechanism.startswith("SCRAM")) and not (
        made.get("sasl.username") and made.get("sasl.password")
    ):
        what = f"is missing: sasl.mechanism={mechanism} needs a name and a password"
        allowed = "username and password there, or sasl.username and sasl.password"
        return [PropertyProblem(f"{prefix}sasl.jaas.config", what, allowed=allowed)]
    return []


def refused_setting(text: str, prefix: str) -> ConfigurationError:
    """Return the error for a setting that librdkafka refuses."""
    unknown = re.search(r'No such configuration property: "([^"]+)"', text)
    if unknown:
        problem = PropertyProblem(f"{prefix}{unknown[1]}", "librdkafka has no such property")
    else:
        named = re.search(r'(?:property|for) "([^"]+)"', text) or re.search(r"`([\w.]+)`", text)
        name = named[1] if named else "*"
        # librdkafka's text may quote the value.
        why = "" if looks_secret(name) else f": {text}"
        problem = PropertyProblem(f"{prefix}{name}", f"librdkafka refuses it{why}")
    return ConfigurationError([problem])


# --- values that need more than another name --------------------------------------------------------

Special = Callable[[str, Mapping[str, str]], dict[str, str]]


def _jaas(value: str, _named: Mapping[str, str]) -> dict[str, str]:
    match = JAAS.fullmatch(value)
    options = {} if match is None else dict(JAAS_OPTION.findall(match["options"]))
    if not options or not options.keys() <= JAAS_NAMES.keys():
        raise ValueError(
            "only PlainLoginModule and ScramLoginModule with username and password, and "
            "OAuthBearerLoginModule with clientId, clientSecret and scope have an equivalent; otherwise "
            "set the sasl.oauthbearer.* of librdkafka"
        )
    # JAAS quotes a quotation mark or backslash by a backslash.
    return {JAAS_NAMES[name]: re.sub(r"\\(.)", r"\1", text) for name, text in options.items()}


def _login_handler(value: str, _named: Mapping[str, str]) -> dict[str, str]:
    if not re.fullmatch(r"org\.apache\.kafka\.[\w.]+\.OAuthBearerLoginCallbackHandler", value):
        raise ValueError("it names a Java class; see sasl.oauthbearer.method")
    return {OAUTH_METHOD: "oidc"}


def _truststore(value: str, named: Mapping[str, str]) -> dict[str, str]:
    if named.get("ssl.truststore.type", "JKS").strip().upper() != "PEM":
        raise ValueError(
            "a Java trust store cannot be read without Java: keytool -exportcert -rfc -keystore FILE "
            "-alias NAME > ca.pem, and ssl.ca.location=ca.pem"
        )
    return {"ssl.ca.location": value}


def _keystore(value: str, named: Mapping[str, str]) -> dict[str, str]:
    # Without a type Java assumes JKS; the file's name shows a PKCS12 store.
    unnamed = "PKCS12" if value.endswith((".p12", ".pfx")) else "JKS"
    kind = named.get("ssl.keystore.type", unnamed).strip().upper()
    if kind == "PEM":
        return {"ssl.certificate.location": value, "ssl.key.location": value}
    if kind == "PKCS12":
        return {"ssl.keystore.location": value}
    raise ValueError(
        "a Java key store cannot be read without Java: keytool -importkeystore -srckeystore FILE "
        "-destkeystore keys.p12 -deststoretype PKCS12, and ssl.keystore.location=keys.p12"
    )


def _partitioner(value: str, _named: Mapping[str, str]) -> dict[str, str]:
    if not value:
        return {}
    found = PARTITIONERS.get(value.lower())
    if found is None:
        raise ValueError(
            "it names a Java class; partitioner=murmur2_random places keys as Java's default does, and "
            "the transform PartitionRouting by columns"
        )
    return {"partitioner": found}


def _memory(value: str, _named: Mapping[str, str]) -> dict[str, str]:
    if not value.isdecimal():
        raise ValueError("a whole number of bytes")
    return {"queue.buffering.max.kbytes": str(max(1, int(value) // 1024))}


def _whole(name: str) -> Special:
    """Return the check of a number that waltap reads too: librdkafka takes 1e3 as 1."""

    def checked(value: str, _named: Mapping[str, str]) -> dict[str, str]:
        if not (value.isascii() and value.isdecimal()):
            raise ValueError("a whole number")
        return {name: value}

    return checked


def _none_of(value: str, _named: Mapping[str, str]) -> dict[str, str]:
    if value:
        raise ValueError("it names Java classes")
    return {}


def _acks(value: str, _named: Mapping[str, str]) -> dict[str, str]:
    if value.lower() not in {"all", "-1"}:
        raise ValueError("waltap confirms what all in-sync replicas have: leave it out, or all")
    return {"acks": "all"}


SPECIAL: Final[Mapping[str, Special]] = {
    "acks": _acks,
    "request.required.acks": _acks,
    "batch.size": _whole("batch.size"),
    "max.request.size": _whole("message.max.bytes"),
    "message.max.bytes": _whole("message.max.bytes"),
    "queue.buffering.max.kbytes": _whole("queue.buffering.max.kbytes"),
    "transaction.timeout.ms": _whole("transaction.timeout.ms"),
    "buffer.memory": _memory,
    "interceptor.classes": _none_of,
    "metric.reporters": _none_of,
    "partitioner.class": _partitioner,
    "sasl.jaas.config": _jaas,
    "sasl.login.callback.handler.class": _login_handler,
    # An empty value switches Java's check off.
    "ssl.endpoint.identification.algorithm": lambda value, _named: {
        "ssl.endpoint.identification.algorithm": value or "none"
    },
    "ssl.keystore.location": _keystore,
    "ssl.truststore.location": _truststore,
}

NOT_THERE: Final[Mapping[str, str]] = {
    "bootstrap.servers": "give it as bootstrap.servers",
    "transactional.id": "give it as transactional.id",
    "ssl.truststore.password": "librdkafka reads PEM files, which have none",
    "ssl.keystore.password.file": "librdkafka takes ssl.keystore.password",
    "ssl.protocol": "librdkafka takes the newest that both sides have",
    "ssl.enabled.protocols": "librdkafka takes the newest that both sides have",
    "ssl.provider": "librdkafka uses OpenSSL",
    "security.providers": "librdkafka uses OpenSSL",
    "sasl.client.callback.handler.class": "it names a Java class",
    "sasl.login.class": "it names a Java class",
    "partitioner.ignore.keys": "partitioner=random does that",
    "partitioner.adaptive.partitioning.enable": "librdkafka does not weigh partitions",
    "partitioner.availability.timeout.ms": "librdkafka does not weigh partitions",
    "opaque": "waltap sets it",
    "error_cb": "waltap sets it",
    "dr_cb": "waltap sets it",
}
