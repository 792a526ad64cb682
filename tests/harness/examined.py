"""A profile as the resolution finds it, with the origins of its properties."""

from typing import Any

from waltap.config.layers import RawProfile
from waltap.config.namespace import ValidationResult
from waltap.config.resolve import survey
from waltap.plugins.host import Host


def examine(raw: RawProfile, host: Host, **options: Any) -> ValidationResult:
    """Return the resolved profile and its findings. Raises: ConfigurationError with every problem."""
    found = survey(raw, host, **options)
    if found.profile is None:
        raise found.error()
    return found
