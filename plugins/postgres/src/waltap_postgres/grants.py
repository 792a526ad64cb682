"""The SQL that gives a role what the server said it lacks."""

import re

__all__ = ["grant_for", "quoted"]

DENIED = re.compile(
    r"permission denied for (database|schema|table|relation|view|foreign table|sequence|function) "
    r'"?([^"]+)"?$'
)
GRANTS = {
    "database": "CONNECT ON DATABASE {name}",
    "schema": "USAGE ON SCHEMA {name}",
    "sequence": "USAGE ON SEQUENCE {name}",
    "function": "EXECUTE ON FUNCTION {name}",
}
"""What reading needs of each kind of object; of all others, `SELECT`."""
OWNED = re.compile(r'must be (?:the )?owner of (\w+(?: table)?) "?([^"]+)"?$')


def quoted(name: str) -> str:
    """Return a name as SQL has it: in quotes where it needs them."""
    return (
        name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else '"{}"'.format(name.replace('"', '""'))
    )


def grant_for(message: str, user: str, *, rights: str = "SELECT") -> str:
    """Return the SQL after which ``user`` may do what the server's ``message`` refused.

    The server names an object without its schema. ``rights`` are those that a table is to be used with.
    What names no object is about replication.
    """
    role = quoted(user)
    denied = DENIED.search(message)
    if denied is not None:
        kind, name = denied[1], quoted(denied[2])
        what = GRANTS.get(kind, rights + " ON {name}").format(name=name)
        return f"GRANT {what} TO {role}"
    owned = OWNED.search(message)
    if owned is not None:
        return f"ALTER {owned[1].upper()} {quoted(owned[2])} OWNER TO {role}"
    return f"ALTER ROLE {role} WITH REPLICATION"
