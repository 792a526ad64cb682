"""Name the extra that brings a missing plugin.

``extras.toml`` lists the extras of this distribution and their contributions.
"""

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files


@cache
def brought() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return extra → kind of plugin → names and aliases."""
    text = files("waltap.base").joinpath("extras.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def extra_for(kind: str, name: str) -> str | None:
    """Return the extra to install for ``name``, in pip's form.

    ``kind`` is such as ``"sinks"``. None: no extra of waltap has the name.
    """
    for extra, kinds in brought().items():
        if name.lower() in {known.lower() for known in kinds.get(kind, ())}:
            return f"waltap[{extra}]"
    return None
