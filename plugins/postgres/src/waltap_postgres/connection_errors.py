"""Errors of connections: poolers, certificates and outdated passwords."""

import re

from waltap.errors import ConnectionLost, SourceError

PoolerInTheWay = SourceError.define("PoolerInTheWay", "WT-2027")
PasswordOutdated = ConnectionLost.define("PasswordOutdated", "WT-2032")
CertificateRefused = SourceError.define("CertificateRefused", "WT-2028")


# Messages of PgBouncer and similar poolers. PostgreSQL calls its own parameters `unrecognized`.
POOLERS = re.compile(
    r"unsupported startup parameter|PgBouncer|pgbouncer|Tenant or user not found|no such database: "
    r"|no more connections allowed \(max_client_conn\)|query_wait_timeout"
)

# Messages of the SQL parser about replication commands: a pooler dropped the parameter ``replication``.
NO_WALSENDER = re.compile(
    r'at or near "(?:IDENTIFY_SYSTEM|CREATE_REPLICATION_SLOT|START_REPLICATION|TIMELINE_HISTORY)"'
)

# Pattern of libpq's and OpenSSL's message → the remedy; the first match counts.
CERTIFICATES = (
    (
        r"does not match host name",
        ("The server's certificate is of another name: give that in database.hostname, have one made for "
        "{address}, or check less with database.sslmode=verify-ca"),
    ),
    (
        r"certificate has expired|certificate is not yet valid",
        "Renew the server's certificate, or set this machine's clock right",
    ),
    (
        r"certificate verify failed|unable to get (?:local )?issuer|self.signed certificate",
        (
            "The server's certificate must be signed by the authority that database.sslrootcert names "
            "(PEM), and must not have expired; with database.sslmode=require nothing is verified"
        ),
    ),
    (
        r"root certificate file .* does not exist|could not read root certificate",
        ("database.sslrootcert must name the file of the authority that signed the server's certificate "
        "(PEM); with database.sslmode=require nothing is verified"),
    ),
    (
        r"requires a valid client certificate|certificate required|certificate authentication failed",
        ("The server asks for a certificate of the role: name its file in database.sslcert and its "
        "key's file in database.sslkey; its common name (CN) is the role's name"),
    ),
    (
        r"alert (?:unknown ca|bad certificate|certificate (?:expired|revoked|unknown)|decrypt error)",
        ("The server does not take the certificate in database.sslcert: have one made by an authority "
        "that the server trusts (ssl_ca_file)"),
    ),
    (
        (r"could not load (?:private key|certificate)|private key file|but not private key"
        r"|could not read certificate file|bad decrypt"),
        ("database.sslcert and database.sslkey must belong together, be readable by this user alone (mode "
        "0600), and database.sslpassword must be the key's"),
    ),
    (
        r"server does not support SSL",
        "Switch TLS on at the server (ssl = on); database.sslmode=prefer or disable goes without",
    ),
)  # fmt: skip


def password_outdated(error: SourceError, text: str) -> ConnectionLost | None:
    """Return the error for a refused password that may change.

    None means that libpq's ``text`` says something else.
    """
    if any(words in text for words in ("28P01", "authentication failed", "no password supplied")):
        return PasswordOutdated(error.problem, **error.fields)
    return None


def pooler_of_text(text: str, address: str) -> SourceError | None:
    """Return the error for a pooler's message, None for another."""
    return PoolerInTheWay(text, address=address) if POOLERS.search(text) else None


def certificate_refused(text: str, address: str) -> SourceError | None:
    """Return the error for a message about TLS, None for another."""
    for pattern, way in CERTIFICATES:
        if re.search(pattern, text):
            return CertificateRefused(text, way=way.format(address=address))
    return None
