"""What is wrong with a signal."""

__all__ = ["SignalUnusable"]


class SignalUnusable(ValueError):
    """A signal that cannot be acted on; its text says why. It is logged as WT-4101 and left out."""
