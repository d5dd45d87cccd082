"""How commands end: an exit code for each kind of failure, and a line that says what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import IO, Any

import click


class Exit(IntEnum):
    """Exit codes. The words are those of docs/cli.md."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Exit:
        """Make a member that is its number and knows what it means."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    OK = 0, "done"
    FAILED = 1, "anything that has no code of its own, such as a file that cannot be read"
    USAGE = 2, "the command line or a profile is wrong; nothing was done"
    UNREACHABLE = 3, "no broker could be reached"
    TIMEOUT = 4, "it took too long; it may or may not have been done"
    NOT_FOUND = 5, "a topic, partition, group, broker or offset is not there"
    EXISTS = 6, "it is there already"
    REFUSED = 7, "the broker refused: a wrong setting, a group with members, no permission …"
    UNSUPPORTED = 8, "the broker does not speak an api that is needed"
    PARTIAL = 9, "of several things some were done, and some failed"
    INTERRUPTED = 130, "interrupted with Ctrl-C"
    BROKEN_PIPE = 141, "whoever read the output went away"


class Failure(click.ClickException):
    """Something that the user can mend: one line that says what, and what to do."""

    def __init__(self, message: str, code: int = Exit.FAILED) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = code  # type: ignore[misc]  # click means it so

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line."""
        click.echo(f"error: {self.message}", file=file or sys.stderr)


# What the broker's errors are to a user: exit code, and what to do. Others were refused.
_KINDS = {
    "UNKNOWN_TOPIC_OR_PARTITION": (Exit.NOT_FOUND, "see what there is: ottla topic list"),
    "UNKNOWN_TOPIC_ID": (Exit.NOT_FOUND, "see what there is: ottla topic list"),
    "GROUP_ID_NOT_FOUND": (Exit.NOT_FOUND, "see what there is: ottla group list"),
    "RESOURCE_NOT_FOUND": (Exit.NOT_FOUND, "see what there is: ottla cluster describe"),
    "OFFSET_OUT_OF_RANGE": (Exit.NOT_FOUND, "see what there is: ottla topic offsets TOPIC"),
    "TOPIC_ALREADY_EXISTS": (
        Exit.EXISTS,
        "take another name (ottla topic create has --if-not-exists)",
    ),
    "NON_EMPTY_GROUP": (Exit.REFUSED, "see who they are: ottla group describe GROUP"),
    "INVALID_CONFIG": (Exit.REFUSED, "see which settings there are: ottla config describe"),
    "MESSAGE_TOO_LARGE": (Exit.REFUSED, "raise max.message.bytes: ottla topic alter TOPIC --set"),
}


@contextmanager
def translated() -> Iterator[None]:
    """Turn what the SDK and the operating system raise into failures of a command."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        # Nothing more can be printed, not even what is buffered.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.BROKEN_PIPE)
    except Exception as error:
        failure = failure_of(error)
        if failure is None:
            raise  # A bug: its traceback is wanted.
        raise failure from error


def failure_of(error: Exception) -> Failure | None:
    """Say what went wrong in a user's words; None if it is a bug."""
    from ottla.client.errors import ClientError, KafkaError

    if isinstance(error, KafkaError):
        code, advice = _KINDS.get(error.code.name, (Exit.REFUSED, ""))
        return Failure(_join(error.detail or error.code.message, advice), code)
    if isinstance(error, ClientError):
        return _of_client(error)
    if isinstance(error, ExceptionGroup):
        return failure_of(error.exceptions[0])
    if isinstance(error, TimeoutError):
        return Failure(_join(str(error) or "it took too long", "try again"), Exit.TIMEOUT)
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return Failure(f"{name}{error.strerror or error}")
    return None


def _of_client(error: Exception) -> Failure:
    from ottla.client.admin import PartialError
    from ottla.client.errors import ConnectionLostError, DeadlineError, UnsupportedError

    cause = error.__cause__
    if isinstance(error, DeadlineError) and isinstance(cause, ConnectionLostError):
        error = cause
    if isinstance(error, ConnectionLostError):
        advice = "say where a broker is: --bootstrap HOST:PORT, or start one: ottla broker start"
        return Failure(_join(str(error), advice), Exit.UNREACHABLE)
    if isinstance(error, DeadlineError):
        return Failure(_join(str(error), "try again, or give it longer: --timeout"), Exit.TIMEOUT)
    if isinstance(error, UnsupportedError):
        advice = "see what it speaks: ottla cluster api-versions"
        return Failure(_join(str(error), advice), Exit.UNSUPPORTED)
    if isinstance(error, PartialError):
        return _of_several(error.failed, is_partial=bool(error.done))
    return Failure(str(error))


def _of_several(failed: dict[Any, Exception], *, is_partial: bool) -> Failure:
    """Say each; the exit code is theirs, if they have one in common and nothing was done."""
    each = {thing: failure_of(error) or Failure(str(error)) for thing, error in failed.items()}
    codes = {failure.exit_code for failure in each.values()}
    code = Exit.PARTIAL if is_partial or len(codes) > 1 else codes.pop()
    return Failure("; ".join(f"{thing}: {one.message}" for thing, one in each.items()), code)


def _join(message: str, advice: str) -> str:
    return f"{message}; {advice}" if advice else message
