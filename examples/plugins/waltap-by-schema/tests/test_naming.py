"""Names of topics."""

from waltap.changes.capture import CaptureProperties
from waltap_by_schema.plugin import register_topic_naming

(SPEC,) = register_topic_naming()


def test_tables_of_a_schema_share_a_topic():
    name = SPEC.factory(CaptureProperties.model_validate({"topic.prefix": "shop"}))
    assert name("sales", "orders") == name("sales", "items") == "shop.sales"
    assert name("public", "orders") == "shop.public"
