"""Exit codes, and error messages with advice."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import IO, Any

import click


class Exit(IntEnum):
    """Exit codes, with the descriptions of docs/cli.md."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Exit:
        """Create a member that is an int with a description."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    OK = 0, "success"
    FAILED = 1, "nothing succeeded, for another reason: an unreadable file, invalid input, …"
    USAGE = 2, "invalid command line or profile; nothing was done"
    UNREACHABLE = 3, "no broker reachable"
    TIMEOUT = 4, "timed out; the operation may or may not have taken effect"
    NOT_FOUND = 5, "topic, partition, group, broker or offset not found"
    EXISTS = 6, "already exists"
    REJECTED = 7, "rejected by the broker: invalid config, non-empty group, no permission …"
    UNSUPPORTED = 8, "the broker does not support a required API"
    PARTIAL = 9, "some operations succeeded and some failed"
    INTERRUPTED = 130, "interrupted with Ctrl-C"
    BROKEN_PIPE = 141, "the reader of the output closed it"


class Failure(click.ClickException):
    """An error the user can fix: one line with the problem and what to do."""

    def __init__(self, message: str, code: int = Exit.FAILED) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = code  # type: ignore[misc]  # an instance attribute here

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message."""
        click.echo(f"error: {self.message}", file=file or sys.stderr)


_ACL_ADVICE = "ask for an ACL: ottla acl create --help"
_DISK_ADVICE = "free space on the broker's disk, or see the broker's log for its errors"

# Exit code and advice for a broker's error code; all others are REJECTED.
_BY_ERROR_CODE = {
    "UNKNOWN_TOPIC_OR_PARTITION": (Exit.NOT_FOUND, "list topics: ottla topic list"),
    "UNKNOWN_TOPIC_ID": (Exit.NOT_FOUND, "list topics: ottla topic list"),
    "GROUP_ID_NOT_FOUND": (Exit.NOT_FOUND, "list groups: ottla group list"),
    "TRANSACTIONAL_ID_NOT_FOUND": (Exit.NOT_FOUND, "list transactional ids: ottla txn list"),
    "RESOURCE_NOT_FOUND": (Exit.NOT_FOUND, "list brokers: ottla cluster describe"),
    "OFFSET_OUT_OF_RANGE": (Exit.NOT_FOUND, "show offsets: ottla topic offsets TOPIC"),
    "TOPIC_ALREADY_EXISTS": (Exit.EXISTS, "use another name"),
    "NON_EMPTY_GROUP": (Exit.REJECTED, "show its members: ottla group describe GROUP"),
    "TOPIC_AUTHORIZATION_FAILED": (Exit.REJECTED, _ACL_ADVICE),
    "GROUP_AUTHORIZATION_FAILED": (Exit.REJECTED, _ACL_ADVICE),
    "CLUSTER_AUTHORIZATION_FAILED": (Exit.REJECTED, _ACL_ADVICE),
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": (Exit.REJECTED, _ACL_ADVICE),
    "SECURITY_DISABLED": (Exit.UNSUPPORTED, ""),
    "KAFKA_STORAGE_ERROR": (Exit.REJECTED, _DISK_ADVICE),
    "MESSAGE_TOO_LARGE": (
        Exit.REJECTED,
        "raise the limit: ottla topic alter TOPIC --set max.message.bytes=BYTES",
    ),
}


@contextmanager
def translate_errors() -> Iterator[None]:
    """Convert exceptions of the SDK and the operating system to Failure."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        # Nothing more can be printed, buffered output included.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.BROKEN_PIPE)
    except Exception as error:
        failure = failure_of(error)
        if failure is None:
            raise  # A bug: show its traceback.
        raise failure from error


def failure_of(error: Exception) -> Failure | None:
    """Return the failure to show for an exception; None if it is a bug."""
    from ottla.client.errors import ClientError, KafkaError

    if isinstance(error, KafkaError):
        code, advice = _BY_ERROR_CODE.get(error.code.name, (Exit.REJECTED, ""))
        advice = _advice_by_command(error.code.name) or advice
        return Failure(_join(error.detail or error.code.message, advice), code)
    if isinstance(error, ClientError):
        return _client_failure(error)
    if isinstance(error, ExceptionGroup):
        return failure_of(error.exceptions[0])
    if isinstance(error, TimeoutError):
        return Failure(_join(str(error) or "Timed out", "try again"), Exit.TIMEOUT)
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return Failure(f"{name}{error.strerror or error}")
    return None


def _advice_by_command(code_name: str) -> str:
    """Return advice that depends on the command that runs: what it suggests must work there."""
    context = click.get_current_context(silent=True)
    params = {} if context is None else context.params
    if code_name == "TOPIC_ALREADY_EXISTS" and "if_not_exists" in params:
        return "use another name, or --if-not-exists"
    if code_name == "RESOURCE_NOT_FOUND" and "users" in params:
        return "list users: ottla user list"
    name = params.get("name") or params.get("topic")
    if code_name == "INVALID_CONFIG" and name:
        kind = params.get("kind", "topic")
        return f"list its configs: ottla config describe {kind} {name} --all"
    return ""


def _client_failure(error: Exception) -> Failure:
    from ottla.client.admin import PartialError
    from ottla.client.errors import (
        AuthenticationError,
        ConnectionLostError,
        DeadlineError,
        UnsupportedError,
    )

    cause = error.__cause__
    if isinstance(error, DeadlineError) and isinstance(cause, ConnectionLostError):
        error = cause
    if isinstance(error, ConnectionLostError):
        advice = (
            "give the address of a broker: --bootstrap HOST:PORT, or start one: ottla broker start"
        )
        return Failure(_join(str(error), advice), Exit.UNREACHABLE)
    if isinstance(error, AuthenticationError):
        return Failure(_join(str(error), _security_advice()), Exit.REJECTED)
    if isinstance(error, DeadlineError) and _is_storage_error(cause):
        return Failure(_join(str(error), _DISK_ADVICE), Exit.TIMEOUT)
    if isinstance(error, DeadlineError):
        return Failure(_join(str(error), "try again, or use a longer --timeout"), Exit.TIMEOUT)
    if isinstance(error, UnsupportedError):
        advice = "list its APIs: ottla cluster api-versions"
        return Failure(_join(str(error), advice), Exit.UNSUPPORTED)
    if isinstance(error, PartialError):
        return _partial_failure(error.failed, is_partial=bool(error.done))
    return Failure(str(error))


def _security_advice() -> str:
    """Say where the configs that the message names come from."""
    return "they are those of --command-config or the profile: ottla profile set --help"


def _is_storage_error(error: BaseException | None) -> bool:
    from ottla.client.errors import ErrorCode, KafkaError

    return isinstance(error, KafkaError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR


def _partial_failure(failed: dict[Any, Exception], *, is_partial: bool) -> Failure:
    """Join failures."""
    failures = {name: failure_of(error) or Failure(str(error)) for name, error in failed.items()}
    return Failure(
        "; ".join(f"{name}: {one.message}" for name, one in failures.items()),
        exit_code_of(failures.values(), is_partial=is_partial),
    )


def exit_code_of(failures: Iterable[Failure], *, is_partial: bool) -> int:
    """Return PARTIAL if something succeeded, else the code that the failures share, or FAILED."""
    codes = {failure.exit_code for failure in failures}
    return Exit.PARTIAL if is_partial else codes.pop() if len(codes) == 1 else Exit.FAILED


def _join(message: str, advice: str) -> str:
    return f"{message}; {advice}" if advice else message
