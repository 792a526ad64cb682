"""Python that is made at run time: it has a readable name, tracebacks show its lines, and it can be read.

Whoever generates code calls `define`. The source is kept, compressed, as long as one of its functions is,
and put into `linecache` when somebody asks for a line.
"""

import itertools
import linecache
import weakref
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

__all__ = ["define", "sources"]


class _GeneratedModule:
    """One generated module. It lives in the globals of its functions."""

    __slots__ = ("__weakref__", "_packed", "name")

    def __init__(self, name: str, text: str) -> None:
        self.name, self._packed = name, zlib.compress(text.encode(), 1)

    @property
    def text(self) -> str:
        return zlib.decompress(self._packed).decode()


_ALIVE: "weakref.WeakValueDictionary[str, _GeneratedModule]" = weakref.WeakValueDictionary()
_NUMBERS = itertools.count(1)


def define(text: str, title: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run ``text`` with ``names`` as its globals; return them, with what it defined.

    ``title`` says what it is for (``JSON codec of public.orders``); a number is appended, since each
    relation version has its own. ``text`` is made by us: nothing that a user gave may stand in it but
    inside literals.
    """
    name = f"waltap {title} #{next(_NUMBERS)}"
    source = _GeneratedModule(name, text)
    names["__waltap_source__"] = source
    _ALIVE[name] = source
    # an entry of one element is read when it is asked for; names in <> never are
    linecache.cache[name] = (partial(_lines, name),)
    weakref.finalize(source, linecache.cache.pop, name, None).atexit = False
    exec(compile(text, name, "exec"), names)  # noqa: S102 - see above
    return names


def sources() -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the generated code that is alive, the oldest first."""
    for name, source in sorted(_ALIVE.items(), key=lambda item: int(item[0].rpartition("#")[2])):
        yield name, source.text.strip("\n") + "\n"


def _lines(name: str) -> str:
    source = _ALIVE.get(name)
    return source.text if source is not None else ""
