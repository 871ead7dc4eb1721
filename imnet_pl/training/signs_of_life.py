"""Signs of life: what each rank last heard of the others, beside the collectives that a lost rank leaves hanging."""

import json
import logging
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

log = logging.getLogger(__name__)

EVERY_SEC = 1.0
_STORE_SEC = 5.0  # that the store has for an answer
_KEY = "imnet_pl/sign/{}"


@dataclass
class Sign:
    """What was last heard of a rank.

    Args:
        number: Of the sign; it grows while the rank is alive.
        step: Optimiser steps that it had done.
        words: Why it ended, if it could say so.
        heard_sec: When that was, by this machine's monotonic clock.
    """

    number: int
    step: int
    words: str
    heard_sec: float


class SignsOfLife:
    """Sends this rank's signs, and keeps the last one of each rank.

    They go through the store of the process group, on rank 0's host, over a connection of their own. A thread
    sends and fetches, since it hangs when the network is cut; ``signs`` can always be read.

    Args:
        rank: This one.
        hosts: Name of the machine of each rank.
        address: Host of the store.
        port: Its port.
    """

    def __init__(
        self, rank: int, hosts: Sequence[str], address: str, port: int
    ) -> None:
        self.rank, self.hosts = rank, hosts
        self.step, self.words = 0, ""
        now = time.monotonic()
        self.signs = {other: Sign(-1, 0, "", now) for other in range(len(hosts))}
        self._place = (address, port)
        self._number = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._run, daemon=True, name="signs-of-life"
        )

    def start(self) -> None:
        """Send and fetch from now on."""
        self._thread.start()

    def stop(self, words: str = "") -> None:
        """Send this rank's last words, and no more; bounded also where the network is cut."""
        self.words = words
        self._is_over.set()
        self._thread.join(_STORE_SEC if words else EVERY_SEC)

    def silent(self, for_sec: float) -> list[int]:
        """Return the other ranks of which nothing was heard for so long, and that had not said that they end."""
        latest = time.monotonic() - for_sec
        return [
            rank
            for rank, sign in self.signs.items()
            if rank != self.rank and sign.heard_sec < latest and not sign.words
        ]

    def _run(self) -> None:
        address, port = self._place
        try:
            store = dist.TCPStore(  # type: ignore[attr-defined]
                address,
                port,
                is_master=False,
                timeout=timedelta(seconds=_STORE_SEC),
                wait_for_workers=False,
                use_libuv=sys.platform != "win32",  # as the process group's own
            )
        except RuntimeError as error:
            log.warning(
                "ranks can not hear of each other (%s): if one is lost, it is not known which.",
                str(error).splitlines()[0],
            )
            return
        is_last = False
        while not is_last:
            is_last = self._is_over.wait(EVERY_SEC)
            try:
                self._send(store)
                self._fetch(store)
            except (
                RuntimeError
            ):  # the store is gone, or does not answer: others stay silent
                continue

    def _send(self, store: Any) -> None:
        self._number += 1
        sign = [self._number, self.step, self.words]
        store.set(_KEY.format(self.rank), json.dumps(sign))

    def _fetch(self, store: Any) -> None:
        keys = [_KEY.format(rank) for rank in range(len(self.hosts))]
        if not store.check(keys):  # a rank has not begun
            return
        now = time.monotonic()
        for rank, text in enumerate(store.multi_get(keys)):
            number, step, words = json.loads(text)
            if number != self.signs[rank].number:
                self.signs[rank] = Sign(number, step, words, now)
