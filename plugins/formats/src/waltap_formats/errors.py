"""Errors of a schema registry."""

from waltap.errors import RetryVerdict, WaltapError

__all__ = [
    "RegistryAway",
    "RegistryLogin",
    "SchemaIncompatible",
    "SchemaInvalid",
    "SchemaNotRegistered",
]


class RegistryAway(WaltapError):
    """The schema registry does not answer.

    No record of the batch was delivered.
    """

    code = "WT-3311"
    retry = RetryVerdict.RECONNECT
    remedy = (
        "waltap tries again by itself, from the last durable position; if this lasts, check that the "
        "registry runs and that schema.registry.url ({url}) is its address; a certificate that the system "
        "does not trust is trusted by schema.registry.ssl.truststore.location."
    )


class RegistryLogin(WaltapError):
    """The schema registry refuses the login."""

    code = "WT-3312"
    retry = RetryVerdict.NEVER
    remedy = (
        "Check basic.auth.user.info (USER:PASSWORD) or bearer.auth.token, and what the registry allows "
        "on {what}; then start again: nothing was lost."
    )


class SchemaIncompatible(WaltapError):
    """The registry refuses a new version that consumers could not read."""

    code = "WT-3313"
    retry = RetryVerdict.NEVER
    remedy = (
        "Nothing of the batch was delivered. Either allow it (PUT {url}/config/{subject}, compatibility "
        "NONE, once consumers are ready), or register a schema by hand and set use.latest.version=true; "
        "then start again."
    )


class SchemaNotRegistered(WaltapError):
    """A schema is not in the registry, and registration is off."""

    code = "WT-3314"
    retry = RetryVerdict.NEVER
    remedy = (
        "Register it under the subject {subject}, or set auto.register.schemas=true; then start again: "
        "nothing was lost."
    )


class SchemaInvalid(WaltapError):
    """The registry refuses a schema as invalid or answers unexpectedly."""

    code = "WT-3315"
    retry = RetryVerdict.NEVER
    remedy = (
        "Check that schema.registry.url ({url}) is the address of a registry with Confluent's REST "
        "interface (Apicurio's ends in /apis/ccompat/v7), and that it takes schemas of this kind."
    )
