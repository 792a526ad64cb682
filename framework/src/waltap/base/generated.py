"""Define Python code at run time, with source that tracebacks can show.

Code generators call `define`. The compressed source lives as long as one of its functions, and
`linecache` gets it on demand. Equal code is compiled once: thousands of tables may have one shape.
"""

import hashlib
import itertools
import linecache
import weakref
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any


class _GeneratedModule:
    """One generated module, referenced by the globals of its functions."""

    __slots__ = ("__weakref__", "_packed", "code", "name")

    def __init__(self, name: str, text: str) -> None:
        self.name, self._packed = name, zlib.compress(text.encode(), 1)
        self.code = compile(text, name, "exec")

    @property
    def text(self) -> str:
        return zlib.decompress(self._packed).decode()


_ALIVE: "weakref.WeakValueDictionary[str, _GeneratedModule]" = weakref.WeakValueDictionary()
# The same by a digest of title and text.
_SHARED: "weakref.WeakValueDictionary[bytes, _GeneratedModule]" = weakref.WeakValueDictionary()
_NUMBERS = itertools.count(1)


def define(text: str, title: str, names: dict[str, Any]) -> dict[str, Any]:
    """Execute ``text`` with ``names`` as its globals; return the globals.

    ``title`` is its purpose (``JSON codec of 12 columns``). A number is appended, since code of one
    title may differ. ``text`` must contain user input inside literals only.
    """
    digest = hashlib.blake2b(f"{title}\n{text}".encode(), digest_size=16).digest()
    source = _SHARED.get(digest)
    if source is None:
        source = _SHARED[digest] = _compiled(f"waltap {title} #{next(_NUMBERS)}", text)
    # The functions' globals keep the source alive.
    names["__waltap_source__"] = source
    exec(source.code, names)  # noqa: S102 - see above
    return names


def _compiled(name: str, text: str) -> _GeneratedModule:
    source = _GeneratedModule(name, text)
    _ALIVE[name] = source
    # linecache loads an entry of one element on demand, but ignores names in <>.
    linecache.cache[name] = (partial(_lines, name),)
    # linecache would otherwise keep an entry for each dropped function.
    weakref.finalize(source, linecache.cache.pop, name, None).atexit = False
    return source


def sources() -> Iterator[tuple[str, str]]:
    """Yield (name, text) of all live generated code, the oldest first."""
    for name, source in sorted(_ALIVE.items(), key=lambda item: int(item[0].rpartition("#")[2])):
        yield name, source.text.strip("\n") + "\n"


def _lines(name: str) -> str:
    source = _ALIVE.get(name)
    return source.text if source is not None else ""
