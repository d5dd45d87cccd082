r"""Regular expressions of subscriptions: they mean what they mean in RE2, and take linear time."""

from __future__ import annotations

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from ottla.coord.consumer import regexes
from ottla.coord.consumer.regexes import (
    CapturingRegex,
    InvalidRegexError,
    compile_regex,
    resolve_regex,
)

EXPRESSIONS = [
    "",
    "orders.*",
    "^orders-[0-9]+$",
    "a|b|",
    "(a+)+b",
    "(foo|bar){2,3}x?",
    r"[^a-c]\d{2,}",
    "a{0}b",
    "(?:x|yz)*",
    "(?P<n>a)b",
    r"\w+\.\w+",
    "a??b",
    "(^a|^b)c",
    "x$|y$",
    "[]a]b",
    "[a-]",
    r"[\w.-]+",
    "(ab?){3}",
    r"\Aab\z",
    "a^b",
    "a$b",
]
INVALID = ["(", "a)", "*a", "a**", "(?=a)", "(?<=a)b", r"(a)\1", "[a", "a{3,2}", "[z-a]", "a\\"]


def own_matcher(expression):
    """The matcher that is used without google-re2."""
    return regexes._Automaton(regexes._Parser(expression).parse()).matches


@pytest.mark.parametrize("expression", EXPRESSIONS)
@given(name=st.text("abcxyz019-._fo", max_size=8))
def test_the_own_matcher_agrees_with_re2(expression, name):
    assert own_matcher(expression)(name) == bool(re2.fullmatch(expression, name))


@pytest.mark.parametrize(
    "expression", [*EXPRESSIONS, "(a*?)(a*)b?(.*)", "(a|ab)(c|bcd)?(d*)", "((a)|(b)){2,}?(.*)"]
)
@given(name=st.text("abcdxy019-", max_size=8))
def test_groups_are_those_of_re2(expression, name):
    expected = re2.fullmatch(expression, name)
    groups = expected and [expected[0], *(group or "" for group in expected.groups())]

    assert CapturingRegex(expression).fullmatch(name) == groups


@pytest.mark.parametrize("expression", INVALID)
def test_what_re2_refuses_is_refused(expression):
    with pytest.raises(re2.error):
        re2.compile(expression)
    for compiled in (own_matcher, compile_regex):
        with pytest.raises(InvalidRegexError, match="Invalid regular expression"):
            compiled(expression)


def test_what_is_refused_is_not_written_to_stderr(capfd):
    with pytest.raises(InvalidRegexError):
        compile_regex("never seen before (")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "expression", ["a" * 1001, "((a{100}){100}){100}", "(" * 60 + "a" + ")" * 60]
)
def test_large_expressions_are_refused(expression):
    with pytest.raises(InvalidRegexError):
        own_matcher(expression) if len(expression) <= 1000 else compile_regex(expression)


def test_no_expression_is_catastrophic():
    """Python's `re` would take for ever."""
    assert not own_matcher("(a*)*(a|aa)*b")("a" * 249)


def test_internal_topics_do_not_match():
    assert resolve_regex(compile_regex(".*"), ["orders", "__consumer_offsets"]) == {"orders"}
