"""What is done on the server with each heartbeat: ``heartbeat.action.query``."""

import logging
from typing import Any

import psycopg

from waltap.errors import RetryVerdict
from waltap_postgres.connection import driver_error, users_path
from waltap_postgres.errors import PrivilegeMissing
from waltap_postgres.grants import grant_for
from waltap_postgres.properties import PostgresProperties

__all__ = ["act"]

log = logging.getLogger(__name__)


def act(connection: "psycopg.Connection[tuple[Any, ...]]", properties: PostgresProperties) -> None:
    """Run the query, where there is one; one that is wrong is a warning.

    Raises: SourceError for a failure that may pass.
    """
    if properties.heartbeat_action_query is None:
        return
    try:
        with users_path(connection):
            connection.execute(properties.heartbeat_action_query.encode())
    except psycopg.Error as error:
        meaning = driver_error(error, properties)
        if meaning.retry is not RetryVerdict.NEVER:
            raise meaning from error
        grant = ""
        if isinstance(meaning, PrivilegeMissing):
            rights = "SELECT, INSERT, UPDATE, DELETE"
            grant = f"; {grant_for(meaning.problem, properties.user, rights=rights)} lets it"
        log.warning(
            "heartbeat.action.query failed: %s%s",
            meaning.problem,
            grant,
            extra={"error_code": meaning.code},
        )
