"""Find the tests that start processes or sleep, by following what a test and its fixtures refer to.

Registries and other indirections hide a reference; a module that uses one sets the marker itself.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent.parent


def starts_processes(item: pytest.Item) -> bool:
    """Whether a test reaches `subprocess.Popen` or `run`, itself or through a fixture.

    Tests with the fixture `pytester` run pytest in a process.
    """
    if "pytester" in getattr(item, "fixturenames", ()):
        return True
    return any("process" in reachable(function) for function in _functions_of(item))


def sleeps(item: pytest.Item) -> bool:
    """Whether a test reaches a sleep, itself or through a fixture; sleep(0) is none."""
    return any("sleep" in reachable(function) for function in _functions_of(item))


def _functions_of(item: pytest.Item) -> Iterator[Callable[..., Any]]:
    yield getattr(item, "function", lambda: None)
    fixtures = getattr(item, "_fixtureinfo", None)
    for definitions in fixtures.name2fixturedefs.values() if fixtures else ():
        for definition in definitions:
            yield definition.func


_reached: dict[int, frozenset[str]] = {}


def reachable(thing: Any) -> frozenset[str]:
    """Return which of "process" and "sleep" a function or class of the tests reaches."""
    thing = getattr(thing, "__func__", thing)
    thing = getattr(thing, "__wrapped__", thing)
    if id(thing) not in _reached:
        _reached[id(thing)] = frozenset()  # a cycle adds nothing
        found = set()
        for reference in _references_of(thing):
            if any(reference is starts for starts in (subprocess.Popen, subprocess.run)):
                found.add("process")
            elif any(reference is sleeps for sleeps in (time.sleep, asyncio.sleep)):
                if _waits(thing.__code__):
                    found.add("sleep")
            else:
                found |= reachable(reference)
        _reached[id(thing)] = frozenset(found)
    return _reached[id(thing)]


def _waits(code: CodeType) -> bool:
    """Whether a function that sleeps has any number or variable to sleep for other than 0."""
    numbers = [value for value in code.co_consts if isinstance(value, int | float)]
    return any(numbers) or not numbers


def _references_of(thing: Any) -> Iterator[Any]:
    if isinstance(thing, type) and _is_ours(thing.__module__):
        yield from thing.__mro__[1:]
        yield from (vars(thing)[name] for name in list(vars(thing)))
    elif isinstance(thing, FunctionType) and _is_ours(thing.__module__):
        yield from (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values())
        names = set(_names_in(thing.__code__))
        for name in names & thing.__globals__.keys():
            value = thing.__globals__[name]
            if isinstance(value, ModuleType):
                yield from (vars(value)[part] for part in names & vars(value).keys())
            else:
                yield value


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


_known_modules: dict[str, bool] = {}


def _is_ours(module: str | None) -> bool:
    """Whether a module is one of the tests."""
    name = module or ""
    if name not in _known_modules:
        file = getattr(sys.modules.get(name), "__file__", None)
        _known_modules[name] = file is not None and Path(file).is_relative_to(TESTS)
    return _known_modules[name]
