"""A blocking client: an asynchronous one on an event loop in a thread, and methods that wait.

class Admin(BlockingClient[AsyncAdmin]):
@signature_of(AsyncAdmin)
def __init__(self, *args: Any, **kwargs: Any) -> None: ...

list_topics = blocking(AsyncAdmin.list_topics)
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import update_wrapper
from inspect import isawaitable
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from .loop_thread import LoopThread

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")


class BlockingClient(Generic[C]):
    """An asynchronous client on an event loop of its own."""

    _client: C

    def _start(self, create: Callable[[], C]) -> None:
        self._loop_thread = loop_thread = LoopThread()
        try:
            self._client = client = loop_thread.run(_create_and_enter(create))
        except BaseException:
            loop_thread.stop()
            raise
        # For a client that is dropped without being closed, or at exit.
        self._finalizer = weakref.finalize(self, loop_thread.stop_after, client.close)

    def _read(self, read: Callable[[C], T]) -> T:
        """Return what `read` returns on the loop."""

        async def read_on_loop() -> T:
            return read(self._client)

        return self._loop_thread.run(read_on_loop())

    def close(self) -> None:
        """Close the client, and stop its thread. May be called again."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._finalizer.detach() is not None:
            try:
                self._loop_thread.run(
                    self._client.__aexit__(*exception)  # type: ignore[attr-defined]
                )
            finally:
                self._loop_thread.stop()


async def _create_and_enter(create: Callable[[], Any]) -> Any:
    # Created on the loop, as it belongs to that.
    return await create().__aenter__()


def signature_of(
    kind: Callable[P, Any],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Return a decorator for an `__init__` with the arguments of the asynchronous class."""

    def replace(_: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        def init(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
            self._start(lambda: kind(*args, **kwargs))

        return init

    return replace


class BlockingMethod(Generic[P, T]):
    """A method of the asynchronous client that runs on its loop; see `blocking`."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    @overload
    def __get__(self, client: None, owner: Any) -> Self: ...

    @overload
    def __get__(self, client: object, owner: Any) -> Callable[P, T]: ...

    def __get__(self, client: Any, owner: Any) -> Any:
        if client is None:
            return self
        loop_thread: LoopThread = client._loop_thread

        async def call(args: Any, kwargs: Any) -> Any:
            # By name: the client may be of a subclass.
            result = getattr(client._client, self._method.__name__)(*args, **kwargs)
            if isawaitable(result):
                return await result
            return _iterate(loop_thread, result) if isinstance(result, AsyncIterator) else result

        def wait(*args: P.args, **kwargs: P.kwargs) -> Any:
            return loop_thread.run(call(args, kwargs))

        return update_wrapper(wait, self._method)


@overload
def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> BlockingMethod[P, T]: ...


@overload
def blocking(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> BlockingMethod[P, Iterator[T]]: ...


@overload
def blocking(method: Callable[Concatenate[Any, P], T]) -> BlockingMethod[P, T]: ...


def blocking(method: Callable[..., Any]) -> Any:
    """Return a blocking method that calls an asynchronous client's method on its loop.

    It waits for a coroutine, and turns an asynchronous iterator into an iterator that waits.
    """
    return BlockingMethod(method)


def _iterate(loop_thread: LoopThread, iterator: AsyncIterator[T]) -> Iterator[T]:
    async def next_item() -> T:
        return await anext(iterator)

    while True:
        try:
            yield loop_thread.run(next_item())
        except StopAsyncIteration:
            return
