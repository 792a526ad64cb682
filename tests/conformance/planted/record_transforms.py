"""Transforms of records with one planted fault each."""

from typing import ClassVar

import pytest
from msgspec.structs import replace

from waltap.format.record_transform import RecordUnfit
from waltap.mapping.connect_schema import Field, Kind, Schema
from waltap.specs import RecordTransformSpec
from waltap_testing.record_transform_suite import RecordTransformRig, RecordTransformSuite

EXTRA = Field("extra", Schema(kind=Kind.STRING))


class Planted(RecordTransformSuite):
    """The suite on a faulty transform."""

    made: ClassVar[object]

    @pytest.fixture
    def rig(self):
        made = type(self).__dict__["made"].__func__
        return RecordTransformRig(
            RecordTransformSpec(
                name="planted", summary="Has a fault.", factory=lambda _given, _context: made()
            )
        )


class TestWithoutFault(Planted):
    @staticmethod
    def made():
        return lambda records: [replace(each, topic=f"x.{each.topic}") for each in records]

    caught_by = ""


class TestChangesWhatItWasGiven(Planted):
    @staticmethod
    def made():
        def transform(records):
            for each in records:
                if each.value is not None:
                    each.value["seen"] = True
            return records

        return transform

    caught_by = "test_records_that_come_in_stay_as_they_are"


class TestLetsOutAnErrorOfItsOwn(Planted):
    @staticmethod
    def made():
        return lambda records: [each for each in records if each.value["op"] != "d"]

    caught_by = "test_a_record_that_is_unfit_is_told_by_its_error"


class TestIsForNothing(Planted):
    @staticmethod
    def made():
        def transform(records):
            if records:
                raise RecordUnfit("nothing is right")
            return []

        return transform

    caught_by = "test_it_is_for_some_records"


class TestMakesASchemaForEachRecord(Planted):
    @staticmethod
    def made():
        def changed(each):
            if each.value is None:
                return each
            schema = replace(each.value_schema, fields=(*each.value_schema.fields, EXTRA))
            return replace(each, value_schema=schema, value={**each.value, "extra": ""})

        return lambda records: [changed(each) for each in records]

    caught_by = "test_what_is_made_of_a_schema_is_kept"


class TestAddsAFieldToTheSchemaAlone(Planted):
    @staticmethod
    def made():
        kept = {}

        def of(schema):
            if id(schema) not in kept:
                kept[id(schema)] = schema, replace(schema, fields=(*schema.fields, EXTRA))
            return kept[id(schema)][1]

        return lambda records: [
            each if each.value is None else replace(each, value_schema=of(each.value_schema))
            for each in records
        ]

    caught_by = "test_what_comes_out_fits_its_schemas"


class TestKeepsTheFirstOfEachBatch(Planted):
    @staticmethod
    def made():
        return lambda records: records[:1]

    caught_by = "test_cutting_batches_elsewhere_makes_no_difference"


class TestGivesSomethingToIterate(Planted):
    @staticmethod
    def made():
        return tuple

    caught_by = "test_records_come_out_in_a_list"


class TestGivesSomethingOfNothing(Planted):
    @staticmethod
    def made():
        return lambda records: records or [None]

    caught_by = "test_no_records_stay_none"


class TestRemembersAnEarlierRun(Planted):
    count: ClassVar[list[int]] = []

    @staticmethod
    def made():
        count = TestRemembersAnEarlierRun.count
        count.append(1)
        number = len(count)
        return lambda records: [replace(each, topic=f"{each.topic}.{number}") for each in records]

    caught_by = "test_the_same_records_give_the_same"
