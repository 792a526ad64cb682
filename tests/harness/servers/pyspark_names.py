"""Names of Java's classes that PySpark asks for: each once.

PySpark looks a class up at each use, part by part, and the JVM searches all of its jars for a class that is called
like the package. That is a sixth of the driver's processor time in tests of small tables.
"""

from functools import wraps
from typing import Any

from py4j.java_gateway import JavaClass, JavaPackage, JVMView

_METHOD = "__getattr__"


def remember() -> None:
    """Have packages and classes looked up once for each JVM."""
    for owner in (JVMView, JavaPackage):
        if not hasattr(getattr(owner, _METHOD), "__wrapped__"):
            setattr(owner, _METHOD, _remembering(getattr(owner, _METHOD)))


def _remembering(look_up: Any) -> Any:
    @wraps(look_up)
    def found(self: Any, name: str) -> Any:
        value = look_up(self, name)
        if isinstance(value, JavaClass | JavaPackage):
            self.__dict__[name] = value
        return value

    return found
