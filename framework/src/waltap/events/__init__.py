"""What changes become: events, as one plan per relation version says it. Sans-IO."""

from waltap.events.identities import Identities, IdentityUnknown

__all__ = ["Identities", "IdentityUnknown"]
