"""What a profile may say of the decoder."""

from waltap.config import Properties, declare


# [properties]
class TestDecodingProperties(Properties):
    """What test_decoding is asked for."""

    __test__ = False  # no test, whatever pytest thinks of its name

    skip_empty: bool = declare(
        "test_decoding.skip_empty_xacts",
        default=False,
        summary="Leave out transactions without changes (16 and older lose messages in them).",
    )


# [/properties]
