"""Failures of the Kafka client that are not exceptions of Python."""

import ctypes
import logging

import pytest
from confluent_kafka import KafkaError, KafkaException

from waltap.errors import ConfigurationError
from waltap_kafka.client import CheckedProducer, KafkaClients, kafka_error
from waltap_kafka.client_settings import client_settings
from waltap_kafka.errors import KafkaNotDelivered, KafkaTransactionExpired

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


@pytest.mark.parametrize(
    ("expired", "kind"), [(True, KafkaTransactionExpired), (False, KafkaNotDelivered)]
)
def test_a_record_that_waited_for_longer_than_its_transaction_names_the_transaction(expired, kind):
    clients = KafkaClients("Kafka", "127.0.0.1:1", {}, "producer.", topic="p")
    error = KafkaError(KafkaError._MSG_TIMED_OUT)
    assert type(clients.error(error, topic="t", expired=expired)) is kind


HANDLER = "sasl.login.callback.handler.class"
APACHE = "org.apache.kafka.common.security.oauthbearer"
OAUTH = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.jaas.config": f'{APACHE}.OAuthBearerLoginModule required clientId="me" clientSecret="a\\"b" scope="x y";',
    "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token",
    HANDLER: f"{APACHE}.secured.OAuthBearerLoginCallbackHandler",
}


def test_a_java_clients_oauth_login_is_the_same_login():
    made = client_settings(OAUTH, "")
    CheckedProducer(made)  # librdkafka knows each
    assert {name.rpartition(".")[2]: made[name] for name in made if ".oauthbearer." in name} == {
        "method": "oidc", "id": "me", "secret": 'a"b', "scope": "x y", "url": OAUTH["sasl.oauthbearer.token.endpoint.url"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "reported"),
    [
        (HANDLER, "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler", "Java class"),
        (HANDLER, None, r"sasl\.oauthbearer\.method: is missing"),
        ("sasl.jaas.config", OAUTH["sasl.jaas.config"].replace("scope", "extension_x"), "clientId"),
    ],
)
def test_another_oauth_login_is_refused(name, value, reported):
    given = {key: text for key, text in {**OAUTH, name: value}.items() if text is not None}
    with pytest.raises(ConfigurationError, match=reported):
        client_settings(given, "")
