r"""Regular expressions of subscriptions: RE2's syntax, and time that is linear in the topic names.

With google-re2 (`pip install 'ottla[re2]'`) it is RE2 that matches. Without it, a matcher of its
own for the subset that topic names need:

    alternatives  a|b           repetition  a* a+ a? a{2} a{2,} a{2,5}, greedy or not (a*?)
    groups        (a) (?:a) (?P<name>a)      classes  . [a-z_] [^-] \d \w \s \D \W \S
    anchors       ^ $ \A \z                escapes  \. \- …

What neither has, such as look-around and back references, is an error, as it is in RE2. Python's
`re` is not used: the time of some expressions is exponential, and it cannot be stopped.

The matcher walks over all states of the expression at once; each set of states is computed once.

`CapturingRegex` has the groups of a match, too, which are those that Perl, Java and Python find. It
goes back where it was wrong, but never twice to the same state at the same character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

#: Longer expressions, and those of more states, are refused.
_MAX_LENGTH = 1_000
_MAX_STATES = 5_000
_MAX_REPEAT = 1_000
_MAX_DEPTH = 50
#: Sets of states that a matcher remembers.
_MAX_CACHED_SETS = 1_000
#: Expressions whose matchers are remembered. A matcher may have several MiB.
_MAX_CACHED_EXPRESSIONS = 16

Matcher = Callable[[str], bool]
_Accepts = Callable[[str], bool]


class InvalidRegexError(ValueError):
    """An expression that is malformed, or uses what is not supported."""


@lru_cache(maxsize=_MAX_CACHED_EXPRESSIONS)
def compile_regex(regex: str) -> Matcher:
    """Return whether a whole name matches. Raises InvalidRegexError."""
    if len(regex) > _MAX_LENGTH:
        raise InvalidRegexError(
            f"Regular expression of {len(regex)} characters: the limit is {_MAX_LENGTH}"
        )
    try:
        import re2  # noqa: PLC0415  # Optional.
    except ImportError:
        return _Automaton(_Parser(regex).parse()).matches
    options = re2.Options()
    options.log_errors = False  # They would go to stderr, past the log of the broker.
    try:
        pattern = re2.compile(regex, options)
    except re2.error as error:
        text = error.args[0] if error.args else ""
        detail = text.decode() if isinstance(text, bytes) else str(text)
        raise InvalidRegexError(f"Invalid regular expression {regex!r}: {detail}") from None
    return lambda name: pattern.fullmatch(name) is not None


def resolve_regex(matcher: Matcher, names: Iterable[str]) -> frozenset[str]:
    """Return the topics that match; topics of the broker itself do not."""
    return frozenset(name for name in names if not name.startswith("__") and matcher(name))


# The states of an automaton are steps; each says where it leads.


class _Step(NamedTuple):
    """Consume a character that `accepts` likes, or none if that is None; then go to `targets`.

    An `anchor`, "^" or "$", is passed at one end of the name only. A `slot` is an end of a group.
    The targets are in the order in which they are tried.
    """

    accepts: _Accepts | None
    targets: list[int]
    anchor: str = ""
    slot: int | None = None


class _Fragment(NamedTuple):
    """A part of the automaton: its first step, and an empty one at its end."""

    start: int
    end: int


class _Parser:
    """Parses an expression into steps, by recursive descent."""

    def __init__(self, regex: str) -> None:
        self._regex = regex
        self._position = 0
        self._depth = 0
        self._steps: list[_Step] = []
        #: The numbers of the groups, by their positions: repeated groups are parsed repeatedly.
        self.groups: dict[int, int] = {}

    def parse(self) -> tuple[list[_Step], _Fragment]:
        """Return the steps, and the fragment of the whole expression."""
        fragment = self._alternatives()
        if self._peek():
            raise self._error("unexpected ')'")
        return self._steps, fragment

    def _error(self, what: str) -> InvalidRegexError:
        return InvalidRegexError(
            f"Invalid regular expression {self._regex!r}: {what} at {self._position}"
        )

    def _peek(self) -> str:
        return self._regex[self._position : self._position + 1]

    def _take(self, text: str) -> bool:
        if self._regex.startswith(text, self._position):
            self._position += len(text)
            return True
        return False

    def _next(self) -> str:
        character = self._peek()
        if not character:
            raise self._error("unexpected end")
        self._position += 1
        return character

    def _step(
        self,
        accepts: _Accepts | None = None,
        targets: Iterable[int] = (),
        anchor: str = "",
        slot: int | None = None,
    ) -> int:
        if len(self._steps) >= _MAX_STATES:
            raise self._error(f"more than {_MAX_STATES} states")
        self._steps.append(_Step(accepts, list(targets), anchor, slot))
        return len(self._steps) - 1

    def _link(self, source: int, *targets: int) -> None:
        self._steps[source].targets.extend(targets)

    # Grammar.

    def _alternatives(self) -> _Fragment:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        end = self._step()
        for branch in branches:
            self._link(branch.end, end)
        return _Fragment(self._step(targets=[branch.start for branch in branches]), end)

    def _sequence(self) -> _Fragment:
        start = end = self._step()
        while self._peek() not in ("", "|", ")"):
            before = self._position
            atom = self._atom()
            fragment = self._repeated(atom, before)
            self._link(end, fragment.start)
            end = fragment.end
        return _Fragment(start, end)

    def _repeated(self, atom: _Fragment, begin: int) -> _Fragment:
        end = self._position
        low, high = self._quantifier()
        if (low, high) == (1, 1):
            return atom
        is_greedy = not self._take("?")
        if self._peek() in ("*", "+", "?"):
            raise self._error("repetition of a repetition")
        after = self._position
        copies = [atom]
        # One fragment per repetition: parse the atom again.
        for _number in range(max(low, 1 if high is None else high) - 1):
            self._position = begin
            copies.append(self._atom())
            assert self._position == end
        self._position = after
        start, final = self._step(), self._step()
        previous = start
        if high == 0:
            return _Fragment(start, start)
        for number, copy in enumerate(copies):
            if number < low:
                self._link(previous, copy.start)
            else:
                self._choose(previous, copy.start, final, is_greedy=is_greedy)
            previous = copy.end
        if high is None:
            self._choose(previous, copies[-1].start, final, is_greedy=is_greedy)
        else:
            self._link(previous, final)
        return _Fragment(start, final)

    def _choose(self, source: int, again: int, final: int, *, is_greedy: bool) -> None:
        self._link(source, *((again, final) if is_greedy else (final, again)))

    def _quantifier(self) -> tuple[int, int | None]:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        if self._peek() != "{":
            return 1, 1
        close = self._regex.find("}", self._position)
        low, comma, high = self._regex[self._position + 1 : max(close, 0)].partition(",")
        if close < 0 or not low.isdecimal() or (high and not high.isdecimal()):
            raise self._error("invalid repetition")
        self._position = close + 1
        minimum = int(low)
        maximum = int(high) if high else None if comma else minimum
        if max(minimum, maximum or 0) > _MAX_REPEAT or (maximum is not None and maximum < minimum):
            raise self._error("invalid repetition")
        return minimum, maximum

    def _atom(self) -> _Fragment:
        if self._take("^") or self._take(r"\A"):
            return self._anchor("^")
        if self._take("$") or self._take(r"\z"):
            return self._anchor("$")
        if self._take("("):
            position = self._position
            is_captured = not self._take("?") or self._group_flags()
            if is_captured:
                number = self.groups.setdefault(position, len(self.groups) + 1)
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise self._error(f"more than {_MAX_DEPTH} nested groups")
            fragment = self._alternatives()
            if not self._take(")"):
                raise self._error("missing ')'")
            self._depth -= 1
            return self._captured(fragment, number) if is_captured else fragment
        character = self._next()
        if character in "*+?{":
            raise self._error(f"nothing to repeat with {character!r}")
        if character == "[":
            return self._character(self._class())
        if character == "\\":
            return self._character(self._escape())
        if character == ".":
            return self._character(lambda one: one != "\n")
        return self._character(_equals(character))

    def _captured(self, fragment: _Fragment, number: int) -> _Fragment:
        end = self._step(slot=2 * number + 1)
        self._link(fragment.end, end)
        return _Fragment(self._step(None, [fragment.start], slot=2 * number), end)

    def _group_flags(self) -> bool:
        """Parse what follows "(?"; return whether the group is captured."""
        if self._take(":"):
            return False
        if self._take("P<") or self._take("<"):
            close = self._regex.find(">", self._position)
            name = self._regex[self._position : max(close, 0)]
            if close >= 0 and name.isidentifier():
                self._position = close + 1
                return True
        raise self._error("invalid or unsupported group syntax")

    def _anchor(self, anchor: str) -> _Fragment:
        end = self._step()
        return _Fragment(self._step(None, [end], anchor), end)

    def _character(self, accepts: _Accepts) -> _Fragment:
        end = self._step()
        return _Fragment(self._step(accepts, [end]), end)

    def _escape(self) -> _Accepts:
        character = self._next()
        if character in _CLASSES:
            return _CLASSES[character]
        if character.isalnum():
            raise self._error(f"invalid or unsupported escape \\{character}")
        return _equals(character)

    def _class(self) -> _Accepts:
        is_negated = self._take("^")
        members: list[_Accepts] = []
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            if self._regex.startswith("[:", self._position):
                raise self._error("unsupported character class")
            character = self._next()
            if character == "\\":
                if self._peek() in _CLASSES:
                    members.append(self._escape())
                    continue
                character = self._escaped_literal()
            if self._peek() == "-" and self._regex[self._position + 1 : self._position + 2] not in (
                "]",
                "",
            ):
                self._next()
                last = self._next()
                if last == "\\":
                    last = self._escaped_literal()
                if last < character:
                    raise self._error(f"invalid range {character}-{last}")
                members.append(_between(character, last))
            else:
                members.append(_equals(character))
        self._next()
        return lambda one: any(accepts(one) for accepts in members) is not is_negated

    def _escaped_literal(self) -> str:
        character = self._next()
        if character.isalnum():
            raise self._error(f"invalid or unsupported escape \\{character}")
        return character


def _equals(character: str) -> _Accepts:
    return lambda one: one == character


def _between(first: str, last: str) -> _Accepts:
    return lambda one: first <= one <= last


def _is_word(one: str) -> bool:
    return one == "_" or (one.isascii() and one.isalnum())


def _is_digit(one: str) -> bool:
    return "0" <= one <= "9"


def _is_space(one: str) -> bool:
    return one in " \t\n\f\r"


_CLASSES: dict[str, _Accepts] = {
    "d": _is_digit,
    "w": _is_word,
    "s": _is_space,
    "D": lambda one: not _is_digit(one),
    "W": lambda one: not _is_word(one),
    "S": lambda one: not _is_space(one),
}


class _Automaton:
    """Matches names against steps."""

    def __init__(self, parsed: tuple[list[_Step], _Fragment]) -> None:
        self._steps, fragment = parsed
        self._final = fragment.end
        self._start = self._closure([fragment.start], "^")
        self._cache: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        states = self._start
        for character in name:
            key = states, character
            following = self._cache.get(key)
            if following is None:
                following = self._closure(
                    target
                    for state in states
                    if (accepts := self._steps[state].accepts) is not None and accepts(character)
                    for target in self._steps[state].targets
                )
                if len(self._cache) >= _MAX_CACHED_SETS:
                    self._cache.clear()
                self._cache[key] = following
            states = following
            if not states:
                return False
        return self._final in states or self._final in self._closure(states, "$" if name else "^$")

    def _closure(self, states: Iterable[int], anchors: str = "") -> frozenset[int]:
        """Return these states and all that are reached from them without a character.

        `anchors` are those that are passed here.
        """
        reached: set[int] = set()
        todo = list(states)
        while todo:
            state = todo.pop()
            if state not in reached:
                reached.add(state)
                step = self._steps[state]
                if step.accepts is None and step.anchor in anchors:
                    todo.extend(step.targets)
        return frozenset(reached)


class CapturingRegex:
    """An expression whose groups are wanted. Raises InvalidRegexError."""

    def __init__(self, regex: str) -> None:
        if len(regex) > _MAX_LENGTH:
            raise InvalidRegexError(
                f"Regular expression of {len(regex)} characters: the limit is {_MAX_LENGTH}"
            )
        parser = _Parser(regex)
        self._steps, fragment = parser.parse()
        self._start, self._final = fragment
        self.group_count = len(parser.groups)

    def fullmatch(self, text: str) -> list[str] | None:
        """Return the text and its groups, empty if they have no part in the match.

        None if the whole text does not match. Takes time in proportion to the text and the states.
        """
        end = len(text)
        slots = [-1] * (2 * self.group_count + 2)
        visited: set[tuple[int, int]] = set()
        # What to try, the next one last: a state and a position; or ~slot, and what it was.
        todo = [(self._start, 0)]
        while todo:
            entry = state, position = todo.pop()
            if state < 0:
                slots[~state] = position
                continue
            if entry in visited:
                continue
            visited.add(entry)
            if state == self._final and position == end:
                slots[0], slots[1] = 0, end
                return [
                    text[slots[at] : slots[at + 1]] if slots[at + 1] >= 0 else ""
                    for at in range(0, len(slots), 2)
                ]
            accepts, targets, anchor, slot = self._steps[state]
            if accepts is not None:
                if position == end or not accepts(text[position]):
                    continue
                position += 1
            elif anchor and position != (0 if anchor == "^" else end):
                continue
            elif slot is not None:
                todo.append((~slot, slots[slot]))
                slots[slot] = position
            todo.extend((target, position) for target in reversed(targets))
        return None
