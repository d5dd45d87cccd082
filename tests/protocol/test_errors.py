"""Error codes and the exceptions that clients see."""

import pytest

from ottla.protocol.errors import (
    ErrorCode,
    KafkaError,
    RefreshError,
    RetriableError,
    error_of,
)


def test_a_code_is_its_number_and_knows_its_name_and_what_to_do():
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER

    assert code == 6
    assert code.name == "NOT_LEADER_OR_FOLLOWER"
    assert code.retriable
    assert not ErrorCode.MESSAGE_TOO_LARGE.retriable
    assert all(code.message for code in ErrorCode)


def test_codes_are_complete_and_each_number_is_there_once():
    assert [code.value for code in ErrorCode] == list(range(-1, 134))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.TOPIC_ALREADY_EXISTS, KafkaError),
        (ErrorCode.REQUEST_TIMED_OUT, RetriableError),
        (ErrorCode.NOT_COORDINATOR, RefreshError),
    ],
)
def test_an_error_in_a_response_is_an_exception_of_its_family(code, kind):
    error = error_of(code)

    assert type(error) is kind
    assert error.code is code
    assert error.retriable is code.retriable
    assert str(error) == f"{code.name} ({code.value}): {code.message}"


def test_no_error_is_no_exception():
    assert error_of(0) is None


def test_the_message_of_the_broker_is_shown():
    error = error_of(ErrorCode.INVALID_CONFIG, "no setting retention.mx")

    assert str(error) == "INVALID_CONFIG (40): no setting retention.mx"


def test_a_code_from_the_future_is_an_unknown_error_that_says_its_number():
    error = error_of(12345)

    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "12345" in str(error)


def test_codes_are_those_of_kafka_python():
    from kafka import errors as theirs  # noqa: PLC0415

    for code in ErrorCode:
        other = theirs.for_code(code)
        if code.value >= 0 and other is not theirs.UnknownError:
            # Where one writes INVALID_TOPIC_EXCEPTION, the other writes InvalidTopicError.
            assert other.errno == code
