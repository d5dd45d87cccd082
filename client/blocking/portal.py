"""How a blocking client gets to the asynchronous one: a loop in a thread, and verbs that wait."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from ..errors import ClosedError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")

# How long something that was interrupted may take to end.
_LAST_WORDS_SECONDS = 10.0


class _Helpers(ThreadPoolExecutor):
    """Threads for what would keep the loop waiting: they help also when the program ends.

    The library's own do not by then, and somebody may still have to compress what is sent last.
    """

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have something done."""
        try:
            return super().submit(work, *args, **kwargs)
        except RuntimeError:
            done: Future[T] = Future()

            def run() -> None:
                try:
                    done.set_result(work(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001  # it is raised by whoever waits
                    done.set_exception(error)

            threading.Thread(target=run, name="ottla-client-helper", daemon=True).start()
            return done


class Portal:
    """An event loop in a thread of its own, and the way to it."""

    def __init__(self, name: str = "ottla-client") -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_Helpers(thread_name_prefix=f"{name}-helper"))
        self._process = os.getpid()
        # What threads wait for, and what is still to be begun for them.
        self._waited_for: dict[Future[Any], Coroutine[Any, Any, Any] | None] = {}
        self._is_ending = False
        self._at_end: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and give what it gives."""
        try:
            self.check()
        except BaseException:
            coroutine.close()
            raise
        done: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            if self._is_ending:
                return
            self._waited_for[done] = None
            task = self._loop.create_task(coroutine)
            tasks.append(task)
            task.add_done_callback(lambda ended: _hand_over(ended, done))

        self._waited_for[done] = coroutine
        try:
            self.call(begin)
            return done.result()
        except BaseException:
            if not done.done():
                # It is the waiting that was interrupted, by Ctrl-C: end what was waited for.
                self.call(lambda: [task.cancel() for task in tasks])
                with suppress(BaseException):
                    done.result(_LAST_WORDS_SECONDS)
            raise
        finally:
            self._waited_for.pop(done, None)

    def stop(self) -> None:
        """End the loop and the thread."""
        if self._process == os.getpid():
            self.call(self._loop.stop)
            self._join()

    def stop_after(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """End them when one more thing is done. It may be called anywhere, and waits for a while.

        It is a program that ends without having closed its client, or has forgotten it: what was
        taken is sent if that is possible.
        """
        tasks: list[asyncio.Task[None]] = []

        def begin() -> None:
            task = self._loop.create_task(last())
            tasks.append(task)
            task.add_done_callback(lambda _: self._loop.stop())

        if self._process == os.getpid():
            self.call(begin)
            if not self._join():
                logger.warning(
                    "a client that nobody closed has not ended in %g s: what it has not sent is"
                    " lost",
                    _LAST_WORDS_SECONDS,
                )

    def at_end(self, what: Callable[[], None]) -> None:
        """Have something called there when nothing can be begun any more."""
        self._at_end.append(what)

    def call(self, what: Callable[[], object]) -> None:
        """Have something called there. If the loop is closed, whoever waits has been told."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(what)

    def _join(self) -> bool:
        if threading.current_thread() is self._thread:
            return True
        self._thread.join(_LAST_WORDS_SECONDS)
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raise what keeps whoever asks from using it."""
        if self._process != os.getpid():
            raise ClosedError("the client was made before this process was forked: make another")
        if self._loop.is_closed():
            raise ClosedError("the client has been closed")
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError("a blocking client would wait for itself: it was called by its own")

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._is_ending = True
            while left := asyncio.all_tasks(self._loop):
                for task in left:
                    task.cancel()
                self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
            for end in self._at_end:
                end()
            # Who came in the last moment: nothing will be begun any more, or end.
            for done, coroutine in tuple(self._waited_for.items()):
                if coroutine is not None:
                    coroutine.close()
                if not done.done():
                    done.set_exception(ClosedError("the client has been closed"))


def _hand_over(ended: asyncio.Future[T], done: Future[T]) -> None:
    if ended.cancelled():
        done.set_exception(ClosedError("the client was closed meanwhile"))
    elif (error := ended.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(ended.result())


class Blocking(Generic[C]):
    """A client of the asynchronous kind, on a loop of its own."""

    _client: C

    def _start(self, make: Callable[[], C]) -> None:
        self._portal = portal = Portal()
        try:
            self._client = client = portal.run(_entered(make))
        except BaseException:
            portal.stop()
            raise
        # Nobody may have closed it when it is forgotten, or when the program ends.
        self._end = weakref.finalize(self, portal.stop_after, client.close)

    def _ask(self, question: Callable[[C], T]) -> T:
        async def there() -> T:
            return question(self._client)

        return self._portal.run(there())

    def close(self) -> None:
        """Close it, and end its thread. It may be called again."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._end.detach() is not None:
            try:
                self._portal.run(self._client.__aexit__(*exception))  # type: ignore[attr-defined]
            finally:
                self._portal.stop()


async def _entered(make: Callable[[], Any]) -> Any:
    # What is made there belongs to that loop.
    return await make().__aenter__()


def like(
    kind: Callable[P, Any],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Make an `__init__` that takes what the asynchronous class takes."""

    def replace(_: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        def init(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
            self._start(lambda: kind(*args, **kwargs))

        return init

    return replace


class _Method(Generic[P, T]):
    """A method that is called here, and done there."""

    method: Callable[..., Any]

    @overload
    def __get__(self, client: None, owner: Any) -> Self: ...

    @overload
    def __get__(self, client: object, owner: Any) -> Callable[P, T]: ...

    def __get__(self, client: Any, owner: Any) -> Any:
        if client is None:
            return self

        def here(*args: P.args, **kwargs: P.kwargs) -> T:
            portal: Portal = client._portal
            return portal.run(self.there(client, args, kwargs))

        return update_wrapper(here, self.method)

    async def there(self, client: Any, args: Any, kwargs: Any) -> T:
        """Do it, with the asynchronous client that a blocking one has."""
        raise NotImplementedError


class Verb(_Method[P, T]):
    """What is awaited there, and waited for here."""

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[T]]) -> None:
        self.method = method

    async def there(self, client: Any, args: Any, kwargs: Any) -> T:
        """Await it."""
        result: T = await self.method(client._client, *args, **kwargs)
        return result


class Plain(_Method[P, T]):
    """What does not wait, but has to be called there."""

    def __init__(self, method: Callable[Concatenate[Any, P], T]) -> None:
        self.method = method

    async def there(self, client: Any, args: Any, kwargs: Any) -> T:
        """Call it."""
        result: T = self.method(client._client, *args, **kwargs)
        return result


class Stream(_Method[P, Iterator[T]]):
    """What is iterated over there is iterated over here."""

    def __init__(self, method: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> None:
        self.method = method

    async def there(self, client: Any, args: Any, kwargs: Any) -> Iterator[T]:
        """Give an iterator that asks there each time."""
        return _taken(client._portal, self.method(client._client, *args, **kwargs))


def _taken(portal: Portal, stream: AsyncIterator[T]) -> Iterator[T]:
    async def take() -> T:
        return await anext(stream)

    while True:
        try:
            yield portal.run(take())
        except StopAsyncIteration:
            return
