"""A line to a server that can be cut and mended: the network between a worker and its broker."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit


class Line:
    """Forward a port of this host to the server of a URL; while it is cut, connections are refused."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._mutex = threading.Lock()
        self._ends: dict[socket.socket, socket.socket] = {}
        self._listener: socket.socket | None = self._listen(0)
        self.port = self._listener.getsockname()[1]
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        self.url = parts._replace(netloc=f"{user}127.0.0.1:{self.port}").geturl()
        self._stopped = False
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Break every connection, and refuse new ones."""
        with self._mutex:
            self._close_all()

    def mend(self) -> None:
        """Accept connections again."""
        with self._mutex:
            if self._listener is None:
                self._listener = self._listen(self.port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._thread.join()
        self._close_all()

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        listener.setblocking(False)
        return listener

    def _close_all(self) -> None:
        for end in self._ends:
            end.close()
        self._ends.clear()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _forward(self) -> None:
        while not self._stopped:
            with selectors.DefaultSelector() as selector:
                with self._mutex:
                    listening = [self._listener] if self._listener else []
                    for each in (*self._ends, *listening):
                        selector.register(each, selectors.EVENT_READ)
                if not selector.get_map():
                    threading.Event().wait(0.02)
                    continue
                ready = [key.fileobj for key, _ in selector.select(0.05)]
            with self._mutex:
                for end in ready:
                    self._serve(end)  # type: ignore[arg-type]  # only sockets were registered

    def _serve(self, end: socket.socket) -> None:
        if end is self._listener:
            with suppress(OSError):
                client, _ = end.accept()
                client.setblocking(True)
                server = socket.create_connection(self._target, timeout=5)
                self._ends |= {client: server, server: client}
            return
        other = self._ends.get(end)
        if other is None:
            return  # closed meanwhile
        try:
            data = end.recv(65_536)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        for each in (end, other):
            self._ends.pop(each, None)
            each.close()
