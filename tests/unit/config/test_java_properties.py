"""Java properties: the rules of java.util.Properties.load."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waltap.config.java_properties import parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a=b", {"a": "b"}, id="equals"),
        pytest.param("a:b", {"a": "b"}, id="colon"),
        pytest.param("a b", {"a": "b"}, id="blank"),
        pytest.param("a = b ", {"a": "b "}, id="trailing-blank-belongs-to-the-value"),
        pytest.param("a \t:\f b", {"a": "b"}, id="blanks-around-separator"),
        pytest.param("a==b", {"a": "=b"}, id="second-separator-is-value"),
        pytest.param("a", {"a": ""}, id="key-only"),
        pytest.param("=b", {"": "b"}, id="empty-key"),
        pytest.param("  a=b", {"a": "b"}, id="leading-blanks"),
        pytest.param("# c\n! d\n\n  # e\na=b # f", {"a": "b # f"}, id="comments"),
        pytest.param("a=b\\\n    c\\\r\n d", {"a": "bcd"}, id="continuation"),
        pytest.param("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}, id="even-backslashes-do-not-continue"),
        pytest.param("a=b\\\n#c", {"a": "b#c"}, id="continued-line-is-no-comment"),
        pytest.param("a=b\\", {"a": "b"}, id="continuation-at-the-end"),
        pytest.param("a=b\rc=d\r\ne=f", {"a": "b", "c": "d", "e": "f"}, id="all-line-ends"),
        pytest.param(r"a\=b=c\:d", {"a=b": "c:d"}, id="escaped-separators"),
        pytest.param(r"a\ b=c", {"a b": "c"}, id="escaped-blank-in-key"),
        pytest.param(r"a=\t\n\r\f\q\\", {"a": "\t\n\r\fq\\"}, id="escapes"),
        pytest.param(r"a=\u00e9\u4E2D", {"a": "é中"}, id="unicode-escapes"),
        pytest.param(r"a=\ud83d\ude00", {"a": "😀"}, id="surrogate-pair"),
        pytest.param(
            r"table.include.list=public\\.orders",
            {"table.include.list": r"public\.orders"},
            id="a-regex",
        ),
        pytest.param("a=1\na=2", {"a": "2"}, id="last-one-wins"),
        pytest.param("", {}, id="empty"),
    ],
)
def test_text_is_read_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("text", [r"x=1" "\n" r"a=\u12", r"x=1" "\n" r"a=\uzzzz"])
def test_a_bad_unicode_escape_names_its_line(text: str) -> None:
    with pytest.raises(ValueError, match="line 2: .*four hexadecimal digits"):
        parse_properties(text)


def stored(values: dict[str, str]) -> str:
    """Write ``values`` as java.util.Properties.store does, from its documentation."""

    def escape(text: str, *, key: bool) -> str:
        out = []
        for at, letter in enumerate(text):
            if letter in "\\=:#!":
                out.append("\\" + letter)
            elif letter == " ":
                out.append("\\ " if key or at == 0 else " ")
            elif letter in "\t\n\r\f":
                out.append("\\" + {"\t": "t", "\n": "n", "\r": "r", "\f": "f"}[letter])
            elif not " " <= letter <= "~":
                data = letter.encode("utf-16-be")
                out += [f"\\u{data[i]:02X}{data[i + 1]:02X}" for i in range(0, len(data), 2)]
            else:
                out.append(letter)
        return "".join(out)

    return "".join(f"{escape(k, key=True)}={escape(v, key=False)}\n" for k, v in values.items())


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(TEXT, TEXT, max_size=5))
def test_reading_is_the_inverse_of_what_java_stores(values: dict[str, str]) -> None:
    assert parse_properties(stored(values)) == values


@given(st.text(st.sampled_from("ab=: \t\\\n\r#!u0"), max_size=40))
def test_any_text_is_read_or_refused_with_a_value_error(text: str) -> None:
    try:
        values = parse_properties(text)
    except ValueError as error:
        assert str(error).startswith("line ")
    else:
        assert all(isinstance(v, str) for v in values.values())
