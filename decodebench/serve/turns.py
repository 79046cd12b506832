"""Several engines on the same weights: they take turns, pass by pass."""

import threading
from collections import deque
from typing import Any

from decodebench.decoding.live import Live


class Turns:
    """A lock that is given in the order in which it was asked for, so that nobody starves."""

    def __init__(self) -> None:
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    def take(self) -> None:
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            self._changed.wait_for(lambda: self._waiting[0] is ticket)

    def give(self) -> None:
        with self._changed:
            self._waiting.popleft()
            self._changed.notify_all()


class SharedLive(Live):
    """A live engine that holds the turn while it works, and not while it sleeps."""

    def __init__(self, turns: Turns, *args: Any, **options: Any) -> None:
        self.turns, self.mine = turns, False
        super().__init__(*args, **options)

    def ready(self, running: int) -> bool:
        self._give()
        more = super().ready(running)
        if more:
            self.turns.take()
            self.mine = True
        return more

    def _work(self) -> None:
        try:
            super()._work()
        finally:
            self._give()

    def _give(self) -> None:
        if self.mine:
            self.mine = False
            self.turns.give()
