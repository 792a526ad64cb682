"""Define the errors of the sink http."""

from waltap.errors import RetryVerdict, SinkError

__all__ = ["HttpLoginRefused", "HttpRefused", "HttpUnavailable"]


class HttpUnavailable(SinkError):
    """The address does not answer, or cannot take requests now."""

    code = "WT-5601"
    retry = RetryVerdict.SAME_BATCH
    remedy = (
        "Look whether the service at {place} is up, and how much it takes (429 says: too much); nothing "
        "is confirmed meanwhile, and delivery goes on with the same records. url, timeout.ms and "
        "retry.timeout.ms are properties of the sink."
    )


class HttpRefused(SinkError):
    """The address refuses a request; another try would not help."""

    code = "WT-5602"
    remedy = (
        "Look at what {place} wants: url, body and the format of the profile decide what it gets. Nothing "
        "behind the record was confirmed: after a correction the next start goes on there. A table "
        "[[transforms]] of type filter leaves out what the service is not to have; errors.tolerance says "
        "what becomes of single records that it calls wrong (400, 409, 413, 415, 422)."
    )

    @property
    def of_a_record(self) -> bool:
        """Return whether the address calls the content wrong."""
        return self.fields.get("status") in {400, 409, 413, 415, 422}

    @property
    def too_large(self) -> bool:
        """Return whether a smaller request may be accepted."""
        return self.fields.get("status") == 413


class HttpLoginRefused(SinkError):
    """The address, or the one that issues tokens, refuses the login."""

    code = "WT-5603"
    remedy = (
        "Correct the auth.* properties of the sink, header.Authorization or signature.secret, whichever "
        "{place} asks for, and start again: it goes on where it was."
    )
