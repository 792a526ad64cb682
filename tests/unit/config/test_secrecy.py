"""Secrets are cut out of texts where that keeps them readable; short ones where they are quoted."""

from waltap.config.secrecy import hide, redacted, without


def test_only_values_of_eight_characters_and_more_are_replaced_in_texts() -> None:
    hide(["threads", "thresholds"])
    assert redacted("snapshot.max.threads: thresholds") == "snapshot.max.threads: ***"


def test_a_short_value_is_hidden_where_a_message_quotes_it() -> None:
    assert without("snapshot.max.threads is 'x' and \"x\"", ["x"]) == (
        "snapshot.max.threads is '***' and \"***\""
    )
    assert without("it is long-one-indeed", ["long-one-indeed"]) == "it is ***"
