"""Make TLS contexts of PEM files."""

import ssl
from collections.abc import Callable

from waltap.errors import ConfigurationError


def tls_context(
    ca: tuple[str, str | None],
    certificate: tuple[str, str | None] = ("", None),
    key: tuple[str, str | None] = ("", None),
    password: str = "",
    default: Callable[[], ssl.SSLContext] = ssl.create_default_context,
) -> ssl.SSLContext:
    """Return a context of PEM files; each has its property's name.

    ``default`` makes it where ``ca`` has no file. Raises: ConfigurationError.
    """
    name, file = ca
    try:
        context = ssl.create_default_context(cafile=file) if file else default()
        name, file = certificate
        if file:
            # A file that is no certificate is noticed before the key is read.
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
            name, file = key if key[1] else certificate
            # Without a password OpenSSL would prompt at a terminal.
            context.load_cert_chain(certificate[1] or "", key[1], lambda: password)
    except OSError as cause:  # ssl.SSLError is one, too
        problem = f"{file} cannot be read as PEM: {cause.strerror or cause}"
        raise ConfigurationError.of(name, problem) from cause
    return context
