"""Texts that formats and sinks often handle wrongly."""

__all__ = ["TEXTS"]

TEXTS = {
    "empty": "",
    "blank": "  \t ",
    "control characters": "".join(map(chr, range(1, 32))) + "\x7f",
    "quotes and backslashes": "\"'`\\\\n\\",
    "line ends": "a\nb\r\nc\rd\u2028e\u2029f\u0085g",
    "beyond the plane": "naïve Ω 漢字 🐘👩‍👩‍👧‍👦 \U0010ffff",
    "combining": "e\u0301 vs \u00e9",
    "looks like null": "null",
    "looks like json": '{"a": [1, null]}',
    "long": "0123456789" * 20_000,
}
