"""What is counted, and how fast it grows."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

#: So many rates are drawn.
DRAWN = 30
_STEPS = "▁▂▃▄▅▆▇█"


@dataclass
class Count:
    """A number that grows. It is looked at again and again, at any times."""

    name: str
    total: int = 0
    #: More to be said of it.
    remark: str = ""
    #: A rate is that of the last so many seconds.
    window_seconds: float = 2.0
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=DRAWN))
    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def rate(self) -> float:
        """How much it grew in a second, as it was last looked at."""
        return self.rates[-1] if self.rates else 0.0

    @property
    def curve(self) -> str:
        """The rates so far, drawn."""
        most = max(self.rates, default=0.0) or 1.0
        return "".join(_STEPS[round(rate / most * (len(_STEPS) - 1))] for rate in self.rates)

    def look(self) -> None:
        """Take note of how large it is now."""
        now = time.monotonic()
        self._seen.append((now, self.total))
        while now - self._seen[0][0] > self.window_seconds:
            self._seen.popleft()
        since, before = self._seen[0]
        if now > since:
            self.rates.append((self.total - before) / (now - since))
