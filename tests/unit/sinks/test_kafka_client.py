"""Failures of the Kafka client that are not exceptions of Python."""

import ctypes
import logging

import pytest
from confluent_kafka import KafkaError, KafkaException

from waltap_kafka.client import CheckedProducer, kafka_error

FENCED = KafkaError(KafkaError._FENCED, "another one", fatal=True)


def no_exception(_error, _message):
    """Raise a KafkaError as the client's C code does, though it is no exception."""
    restore = ctypes.pythonapi.PyErr_Restore
    restore.argtypes = [ctypes.py_object, ctypes.py_object, ctypes.c_void_p]
    for each in (KafkaError, FENCED):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))  # it takes the references
    restore(KafkaError, FENCED, None)


def wrong_result(_error, _message):
    raise SystemError("returned a result with an exception set") from KafkaException(FENCED)


@pytest.mark.parametrize("report", [no_exception, wrong_result])
def test_a_fatal_error_in_a_report_is_an_exception(report):
    producer = CheckedProducer(
        {
            "bootstrap.servers": "127.0.0.1:1",
            "message.timeout.ms": 10,
            "logger": logging.getLogger(),
        }
    )
    producer.produce("t", b"x", on_delivery=report)
    with pytest.raises(KafkaException) as raised:
        producer.flush(10)
    assert kafka_error(raised.value).code() == KafkaError._FENCED
