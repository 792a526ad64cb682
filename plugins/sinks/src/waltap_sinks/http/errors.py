"""Define the errors of the sink http."""

from waltap.errors import RetryVerdict, SinkError

HttpUnavailable = SinkError.define("HttpUnavailable", "WT-5601", retry=RetryVerdict.SAME_BATCH)


class HttpRefused(SinkError):
    """The address refuses a request; another try would not help."""

    code = "WT-5602"
    remedy = (
        "Check what {place} expects: url, body and the profile's format decide the request. "
        "Nothing after the record was confirmed: the next start continues there. A table "
        "[[transforms]] of type filter leaves records out; errors.tolerance decides about "
        "single refused records (400, 409, 413, 415, 422)."
    )

    @property
    def of_a_record(self) -> bool:
        """Return whether the address calls the content wrong."""
        return self.fields.get("status") in {400, 409, 413, 415, 422}

    @property
    def too_large(self) -> bool:
        """Return whether a smaller request may be accepted."""
        return self.fields.get("status") == 413


HttpLoginRefused = SinkError.define("HttpLoginRefused", "WT-5603")
