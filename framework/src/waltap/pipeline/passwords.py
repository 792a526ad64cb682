"""Asks plugins for the password of each connection to the source."""

from waltap.errors import WaltapError
from waltap.host import Host
from waltap.plugin_errors import HookRaised
from waltap.source.password import Password, PasswordUnavailable

__all__ = ["chosen_password"]


def chosen_password(host: Host) -> Password | None:
    """Return what asks the plugins' ``choose_password``, None where no plugin has it."""
    if not host.implements("choose_password"):
        return None

    def password(address: str, port: int, user: str, database: str) -> str | None:
        try:
            found: str | None = host.choose(
                "choose_password", host=address, port=port, user=user, database=database
            )
        except HookRaised as error:
            if isinstance(error.__cause__, WaltapError):
                raise error.__cause__ from error
            what = f"no password for {user} at {address}:{port}: {error.problem}"
            raise PasswordUnavailable(what, **error.fields) from error
        return found

    return password
