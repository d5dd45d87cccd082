"""Tables and bars without rich, and the conversion of errors."""

import io
import sys
from contextlib import redirect_stderr

import pytest

from ottla.cli import output
from ottla.cli.errors import Exit, failure_of
from ottla.client.admin import PartialError
from ottla.client.errors import (
    ClosedError,
    ConnectionLostError,
    DeadlineError,
    ErrorCode,
    KafkaError,
    UnsupportedError,
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_tables_are_aligned_and_escape_control_characters(capsys):
    output.print_table(("name", "count", "list"), [("a\x1b[2Jb\n", 7, (1, 2)), ("c", None, True)])

    assert capsys.readouterr().out == (
        "NAME         COUNT  LIST\na\\x1b[2Jb\\n      7  1,2\nc                -  yes\n"
    )


def test_progress_is_a_plain_count_without_rich(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    terminal = Terminal()

    with redirect_stderr(terminal):
        with output.progress("sending", 2000) as bar:
            bar.advance(1500)
        with output.progress("reading", is_shown=False) as bar:
            bar.advance()

    assert terminal.getvalue() == "\rsending  1,500 of 2,000\r\033[K"


def test_warnings_are_printed_above_the_bar(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    terminal = Terminal()

    with redirect_stderr(terminal), output.progress("sending", 20) as bar:
        bar.advance(1)
        output.note("warning: slow")
        bar.advance(1)

    assert terminal.getvalue() == (
        "\rsending  1 of 20\r\033[Kwarning: slow\n\rsending  2 of 20\r\033[K"
    )


def test_no_progress_bar_in_a_pipe(capsys):
    with output.progress("sending", 2000) as bar:
        bar.advance(1500)

    assert capsys.readouterr().err == ""


def caused(error, cause):
    error.__cause__ = cause
    return error


GONE = KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, "there is no group 'g'")
FULL = KafkaError(ErrorCode.NON_EMPTY_GROUP)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (GONE, Exit.NOT_FOUND, "there is no group 'g'; list groups: ottla group list"),
        (FULL, Exit.REJECTED, "ottla group describe GROUP"),
        (KafkaError(ErrorCode.POLICY_VIOLATION), Exit.REJECTED, "broker policy rejected"),
        (ConnectionLostError("gone"), Exit.UNREACHABLE, "--bootstrap HOST:PORT"),
        (
            caused(DeadlineError("late"), ConnectionLostError("gone")),
            Exit.UNREACHABLE,
            "gone; give the address of a broker",
        ),
        (
            caused(DeadlineError("late"), GONE),
            Exit.TIMEOUT,
            "late; try again, or use a longer --timeout",
        ),
        (TimeoutError(), Exit.TIMEOUT, "Timed out; try again"),
        (UnsupportedError("no Fetch"), Exit.UNSUPPORTED, "ottla cluster api-versions"),
        (ClosedError("closed"), Exit.FAILED, "closed"),
        (FileNotFoundError(2, "No such file", "f"), Exit.FAILED, "f: No such file"),
        (ExceptionGroup("several", [GONE]), Exit.NOT_FOUND, "there is no group"),
        (PartialError({"a": GONE, "b": GONE}, {}), Exit.NOT_FOUND, "a: there is no group"),
        (PartialError({"a": GONE, "b": FULL}, {}), Exit.FAILED, "; b: the group is not empty"),
        (PartialError({"a": GONE}, {"b": None}), Exit.PARTIAL, "a: there is no group"),
    ],
)
def test_errors_have_an_exit_code_and_advice(error, code, words):
    failure = failure_of(error)

    assert failure.exit_code is code
    assert words in failure.message
    assert "\n" not in failure.message


def test_unexpected_exceptions_are_not_converted():
    assert failure_of(KeyError("x")) is None
