"""What the server's refusals mean, in the words of every version from 10 to 18."""

import pytest

from waltap.errors import ConnectionLost, RetryVerdict
from waltap_postgres.connection import unreachable
from waltap_postgres.errors import (
    AuthenticationRefused,
    ConnectionsUsedUp,
    DatabaseMissing,
    DecodingStopped,
    ErrorMeanings,
    OutputPluginUnavailable,
    PrivilegeMissing,
    PublicationMissing,
    QueryFailed,
    ServerLimit,
    ServerUnreachable,
    SlotActive,
    SlotExists,
    SlotInvalidated,
    SlotMissing,
    SlotSynchronized,
    SlotUnfit,
    WalLevelTooLow,
)
from waltap_postgres.properties import PostgresProperties

MEANINGS = ErrorMeanings()


@pytest.mark.parametrize(
    ("sqlstate", "text", "kind"),
    [
        ("55006", 'replication slot "s" is active for PID 4711', SlotActive),
        ("42704", 'replication slot "s" does not exist', SlotMissing),
        ("42704", 'publication "p" does not exist', PublicationMissing),
        ("42704", 'type "t" does not exist', QueryFailed),
        ("42710", 'replication slot "s" already exists', SlotExists),
        ("42501", "must be superuser or replication role to start walsender", PrivilegeMissing),
        ("42501", "permission denied to start WAL sender", PrivilegeMissing),
        ("42501", 'library "x" may not be used as an output plugin', OutputPluginUnavailable),
        ("42501", "permission denied for table t", PrivilegeMissing),
        ("58P01", 'could not access file "x": No such file or directory', OutputPluginUnavailable),
        ("58P01", 'could not open file "pg_wal/00000007.history": No such file or directory', QueryFailed),
        ("58P01", "requested WAL segment 000000010000000000000001 has already been removed", SlotInvalidated),
        ("55000", 'cannot read from logical replication slot "s"', SlotInvalidated),
        ("55000", 'can no longer access replication slot "s"', SlotInvalidated),
        ("55000", 'replication slot "s" was not created in this database', SlotUnfit),
        ("55000", 'cannot use replication slot "s" for logical decoding', SlotSynchronized),
        ("55000", "cannot use physical replication slot for logical decoding", SlotUnfit),
        ("55000", "logical decoding requires wal_level >= logical", WalLevelTooLow),
        ("55000", 'logical decoding requires "wal_level" >= "logical"', WalLevelTooLow),
        ("53300", "sorry, too many clients already", ConnectionsUsedUp),
        ("53400", "all replication slots are in use", ServerLimit),
        ("57P01", "terminating connection due to administrator command", ConnectionLost),
        ("08006", "connection failure", ConnectionLost),
        ("40001", "could not serialize access", ConnectionLost),
        ("40P01", "deadlock detected", ConnectionLost),
        ("", "something without a code", QueryFailed),
    ],
)  # fmt: skip
def test_what_the_server_says_is_understood(sqlstate, text, kind):
    error = MEANINGS.of_query(
        sqlstate, text, slot="s", user="u", database="d", plugin="x", publication="p", address="h:1"
    )
    assert type(error) is kind
    assert text in str(error)  # the server's words, and a remedy whose fields are all there
    assert (error.retry is RetryVerdict.RECONNECT) is issubclass(
        kind, ConnectionLost | SlotActive | SlotSynchronized | ConnectionsUsedUp
    )


@pytest.mark.parametrize(
    ("sqlstate", "text", "function", "kind"),
    [
        ("42704", "Publikation »p« existiert nicht", "get_publication_oid", PublicationMissing),
        ("42704", "слот репликации \"s\" не существует", "ReplicationSlotAcquire", SlotMissing),
        ("42710", "レプリケーションスロット\"s\"はすでに存在します", "ReplicationSlotCreate", SlotExists),
        ("58P01", "das angeforderte WAL-Segment 1 wurde schon entfernt", "WalSndSegmentOpen", SlotInvalidated),
        ("58P01", "konnte nicht auf Datei »x« zugreifen", "internal_load_library", OutputPluginUnavailable),
        ("55000", "Replikations-Slot »s« wurde nicht in dieser Datenbank erzeugt", "CreateDecodingContext", SlotUnfit),
        ("42704", "Typ »t« existiert nicht", "typenameType", QueryFailed),
    ],
)  # fmt: skip
def test_what_the_server_says_is_understood_in_other_languages(sqlstate, text, function, kind):
    error = MEANINGS.of_query(sqlstate, text, function=function, slot="s", publication="p")
    assert type(error) is kind
    assert text in str(error)


def test_a_right_that_is_named_in_another_language_is_not_replication():
    text = "keine Berechtigung für Tabelle t"
    error = MEANINGS.of_query("42501", text, function="aclcheck_error", user="u")
    assert "GRANT SELECT ON … TO u" in str(error)


@pytest.mark.parametrize(
    ("reason", "setting"),
    [
        ("wal_removed", "max_slot_wal_keep_size"),
        ("idle_timeout", "idle_replication_slot_timeout"),
        ("rows_removed", "hot_standby_feedback"),
        ("of a later release", "the server's log"),
    ],
)
def test_why_a_slot_was_given_up_names_what_prevents_it(reason, setting):
    assert setting in SlotInvalidated("gone", slot="s", reason=reason).advice()


def test_the_reader_of_a_slot_is_named():
    error = MEANINGS.of_query("55006", 'replication slot "7" is active for PID 4711', slot="7")
    assert "pg_terminate_backend(4711)" in error.advice()


BEFORE = 'connection to server at "db" (10.0.0.1), port 5432 failed: '


@pytest.mark.parametrize(
    ("text", "kind", "problem"),
    [
        (BEFORE + "Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?",
         ServerUnreachable, BEFORE + "Connection refused"),
        ('could not translate host name "nowhere" to address: Name or service not known',
         ServerUnreachable, 'could not translate host name "nowhere" to address: Name or service not known'),
        (BEFORE + 'FATAL:  28P01: password authentication failed for user "u"', AuthenticationRefused,
         'password authentication failed for user "u"'),
        (BEFORE + "fe_sendauth: no password supplied", AuthenticationRefused, BEFORE + "fe_sendauth: no password supplied"),
        (BEFORE + 'FATAL:  28000: role "u" does not exist', AuthenticationRefused, 'role "u" does not exist'),
        (BEFORE + 'FATAL:  28000: no pg_hba.conf entry for host "10.0.0.2", user "u", database "d", no encryption',
         AuthenticationRefused, 'no pg_hba.conf entry for host "10.0.0.2", user "u", database "d", no encryption'),
        (BEFORE + 'FATAL:  3D000: database "d" does not exist', DatabaseMissing, 'database "d" does not exist'),
        (BEFORE + "FATAL:  42501: permission denied to start WAL sender\n"
         "DETAIL:  Only roles with the REPLICATION attribute may start a WAL sender process.",
         PrivilegeMissing, "permission denied to start WAL sender"),
        (BEFORE + "FATAL:  53300: number of requested standby connections exceeds max_wal_senders (currently 1)",
         ConnectionsUsedUp, "number of requested standby connections exceeds max_wal_senders (currently 1)"),
        (BEFORE + "FATAL:  57P03: the database system is starting up", ServerUnreachable, "the database system is starting up"),
        (BEFORE + "Connection refused\n" + BEFORE + 'FATAL:  3D000: database "d" does not exist', DatabaseMissing,
         'database "d" does not exist'),
        (BEFORE + "SCHWERWIEGEND:  28P01: Passwort-Authentifizierung für Benutzer »u« fehlgeschlagen\n"
         "LOCATION:  auth_failed, auth.c:335", AuthenticationRefused,
         "Passwort-Authentifizierung für Benutzer »u« fehlgeschlagen"),
        (BEFORE + "致命错误:  53300: 对不起, 已经有太多的客户", ConnectionsUsedUp, "对不起, 已经有太多的客户"),
        ("", ServerUnreachable, "connection failed"),
    ],
)  # fmt: skip
def test_a_failed_connection_is_understood_by_its_text(text, kind, problem):
    error = unreachable(text, PostgresProperties(dbname="d", user="u", password="secret"))
    assert type(error) is kind
    assert error.problem == problem
    assert "secret" not in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "unexpected table_index_fetch_tuple call during logical decoding",
        'could not map filenode "base/16388/27711" to relation OID',
        'could not map filenumber "base/16388/27711" to relation OID',
    ],
)
def test_a_server_that_stumbles_over_its_catalogue_while_decoding_is_asked_again(text):
    """The first as PostgreSQL 15.20 decoded a prepared transaction, the others beside TRUNCATE."""
    error = MEANINGS.of_stream("XX000", text, slot="s", publication="p")
    assert type(error) is DecodingStopped
    other = MEANINGS.of_stream("XX000", "cache lookup failed for type 7", slot="s", publication="p")
    assert other.retry is RetryVerdict.NEVER
