"""Error codes and their exceptions."""

import pytest

from ottla.protocol.errors import (
    ErrorCode,
    KafkaError,
    RefreshError,
    RetriableError,
    error_of,
)


def test_an_error_code_is_an_int_with_a_name_a_message_and_a_retry_rule():
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER

    assert code == 6
    assert code.name == "NOT_LEADER_OR_FOLLOWER"
    assert code.retriable
    assert not ErrorCode.MESSAGE_TOO_LARGE.retriable
    assert all(code.message for code in ErrorCode)


def test_the_error_codes_are_complete():
    assert [code.value for code in ErrorCode] == list(range(-1, 134))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.TOPIC_ALREADY_EXISTS, KafkaError),
        (ErrorCode.REQUEST_TIMED_OUT, RetriableError),
        (ErrorCode.NOT_COORDINATOR, RefreshError),
    ],
)
def test_the_exception_class_follows_from_the_retry_rule(code, kind):
    error = error_of(code)

    assert type(error) is kind
    assert error.code is code
    assert error.retriable is code.retriable
    assert str(error) == f"{code.name} ({code.value}): {code.message}"


def test_no_error_has_no_exception():
    assert error_of(0) is None


def test_the_error_message_of_the_response_is_shown():
    error = error_of(ErrorCode.INVALID_CONFIG, "Unknown config retention.mx")

    assert str(error) == "INVALID_CONFIG (40): Unknown config retention.mx"


def test_an_unknown_error_code_is_unknown_server_error_and_shows_the_code():
    error = error_of(12345)

    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "12345" in str(error)


def test_error_codes_are_those_of_kafka_python():
    from kafka import errors as theirs  # noqa: PLC0415

    for code in ErrorCode:
        other = theirs.for_code(code)
        if code.value >= 0 and other is not theirs.UnknownError:
            # Names are spelled differently: INVALID_TOPIC_EXCEPTION is InvalidTopicError.
            assert other.errno == code
