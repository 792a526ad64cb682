"""The database of scenario.sql, as its catalogue shows it after the setup."""

from waltap.changes.decode import Column, DecoderContext, Relation, ServerInfo
from waltap_testing import StaticCatalogue
from waltap_testdecoding.plugin import register_decoders

(SPEC,) = register_decoders()


def table(oid: int, schema: str, name: str, identity: str, key: tuple[str, ...], **columns: int):
    return Relation(
        oid=oid,
        schema=schema,
        table=name,
        identity=identity,
        primary_key=key,
        columns=tuple(
            Column(name=column, type_oid=kind, in_identity=identity == "f" or column in key)
            for column, kind in columns.items()
        ),
    )


CONTEXT = DecoderContext(
    server=ServerInfo(version_num=150020),
    catalogue=StaticCatalogue(
        [
            table(1, "public", "t", "d", ("id",), id=23, a=25, n=1700, big=25),
            table(2, "public", "f", "f", (), id=23, a=25, big=25),
            table(3, "public", "nokey", "d", (), id=23, a=25),
            table(
                4,
                "Odd Schema",
                "My: Table",
                "d",
                ("id[x]",),
                **{"id[x]": 23, "a:b": 18, 'q"q': 90001, "arr": 1007, "ts": 1184},
                b=1560,
                f=701,
                bo=16,
                by=17,
            ),
        ]
    ),
)
