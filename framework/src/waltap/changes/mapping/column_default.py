"""Turn a column's default expression into a schema default.

``pg_get_expr`` prints the expression. A literal is ``'text'::type`` or bare (``7``, ``true``). A
function call, or ``CURRENT_TIMESTAMP`` and its like, gives a placeholder of the type. Other
expressions give no default, because Debezium does not evaluate them. Source: the behaviour of
Debezium 3.6's default values.
"""

import re
from collections.abc import Callable

__all__ = ["default_text", "default_value"]

_CALL = re.compile(r"[(]?[A-Za-z0-9_.]+\((?:.*)\)", re.DOTALL)
_LITERAL = re.compile(r"'((?:[^']|'')*)'")
_CLOCKS = frozenset(
    {"current_timestamp", "current_time", "current_date", "localtime", "localtimestamp"}
)


def default_text(expression: str | None, generated: str) -> str | None:
    """Return the default as PostgreSQL text, or None without one.

    A call gives ``generated``.
    """
    if expression is None:
        return None
    expression = expression.strip()
    if _CALL.match(expression) or expression.lower() in _CLOCKS:
        return generated
    if "'" not in expression:
        return None if expression.startswith("NULL::") or expression == "NULL" else expression
    # The first quoted literal counts, also inside an expression, as in Debezium.
    literal = _LITERAL.search(expression)
    return None if literal is None else literal[1].replace("''", "'")


def default_value(
    expression: str | None, generated: str, convert: Callable[[str], object]
) -> object:
    """Return the default as a Connect value.

    None means that there is none, or that it cannot be evaluated.
    """
    text = default_text(expression, generated)
    if text is None:
        return None
    try:
        return convert(text)
    except (ValueError, ArithmeticError):
        return None
