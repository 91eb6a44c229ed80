"""A network that can fail: a TCP proxy on loopback, and a broker that clients of the proxy reach only through it.

A client connects to the address that the broker advertises, so the broker has a separate listener for clients behind the proxy, and
advertises the proxy's port for it. Splitting the proxy separates only these clients from the broker.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.orchestration.embedded.cluster import EmbeddedCluster
from penstock.orchestration.embedded.kafka import EmbeddedBroker, Seat
from penstock.orchestration.embedded.ports import LOOPBACK, free_port
from tests.support import Kafka
from tests.support.brokers import QuickBroker, SeatedBroker

CHUNK = 1 << 16
WAITING = 1_000
"""Chunks on their way through a proxy, at most."""


class Proxy:
    """Forwards bytes between its own port and `target_port`, both ways, while it is not split, each way after `delay_s` seconds. Use it in
    a `with` block."""

    def __init__(self, target_port: int, delay_s: float = 0.0) -> None:
        self._delay_s = delay_s
        self.port = free_port()
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._whole = asyncio.Event()
        self._whole.set()
        self._connections: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @property
    def bootstrap_servers(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def split(self) -> None:
        """Stop forwarding silently: connections stay open, as when a cable is pulled."""
        self._loop.call_soon_threadsafe(self._whole.clear)

    def cut(self) -> None:
        """Stop forwarding and close connections at both ends, as a restarted firewall does; new ones get no answer."""
        self._loop.call_soon_threadsafe(self._whole.clear)
        self._loop.call_soon_threadsafe(self._close_all)

    def heal(self) -> None:
        """Forward again, including the bytes held back, as TCP would retransmit them."""
        self._loop.call_soon_threadsafe(self._whole.set)

    def _close_all(self) -> None:
        for writer in self._connections:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            await self._whole.wait()
            far_reader, far_writer = await asyncio.open_connection(LOOPBACK, self._target_port)
            self._connections.add(far_writer)
            try:
                await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
            finally:
                self._connections.discard(far_writer)
                far_writer.close()
        except OSError:
            pass  # the broker is down: for the client, so is the proxy
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WAITING)

        async def arrive() -> None:
            while (arriving := await on_the_way.get())[1]:
                await asyncio.sleep(arriving[0] - self._loop.time())
                await self._whole.wait()
                writer.write(arriving[1])
                await writer.drain()

        async def depart() -> None:
            data = b"first"
            while data:
                try:
                    data = await reader.read(CHUNK)
                except ConnectionError:
                    data = b""
                await on_the_way.put((self._loop.time() + self._delay_s, data))

        with suppress(ConnectionError):
            await asyncio.gather(arrive(), depart())
        writer.close()

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, LOOPBACK, self.port), self._loop)
        self._server = starting.result(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class TwoSidedBroker(QuickBroker):
    """A broker with a second listener, `far_port`, that it advertises as `proxy_port`: set this before `start`."""

    def __init__(self, data_dir: Path, port: int) -> None:
        super().__init__(data_dir, port)
        self.far_port = free_port()
        self.proxy_port = 0

    def _write_properties(self) -> None:
        super()._write_properties()
        _add_listener(self.data_dir / "server.properties", self.far_port, self.proxy_port)


@contextmanager
def broker_behind_proxy(folder: Path, delay_s: float = 0.0) -> Iterator[tuple[Kafka, Proxy]]:
    """Start a broker in `folder`, and a proxy in front of its second listener. `delay_s`: as for `Proxy`."""
    broker = TwoSidedBroker(folder, free_port())
    with Proxy(broker.far_port, delay_s) as proxy:
        broker.proxy_port = proxy.port
        broker.start()
        try:
            yield Kafka(broker.bootstrap_servers), proxy
        finally:
            proxy.heal()
            broker.stop()


class _TwoSidedSeat(SeatedBroker):
    far_port = proxy_port = 0

    def _write_properties(self) -> None:
        super()._write_properties()
        _add_listener(self.data_dir / "server.properties", self.far_port, self.proxy_port)


class TwoSidedCluster(EmbeddedCluster):
    """Brokers with a proxy each, in `proxies`, which clients use that know the cluster by `far_servers`. Use it in a `with` block."""

    def __init__(self, data_dir: Path, ports: Sequence[int]) -> None:
        super().__init__(data_dir, ports)
        self._far_ports = {node: free_port() for node in range(1, len(ports) + 1)}
        self.proxies = {node: Proxy(port) for node, port in self._far_ports.items()}

    @property
    def far_servers(self) -> str:
        return ",".join(proxy.bootstrap_servers for proxy in self.proxies.values())

    def _broker(self, data_dir: Path, port: int, seat: Seat) -> EmbeddedBroker:
        broker = _TwoSidedSeat(data_dir, port, seat)
        broker.far_port, broker.proxy_port = self._far_ports[seat.node], self.proxies[seat.node].port
        return broker

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for proxy in self.proxies.values():
                stack.enter_context(proxy)
            stack.callback(self.stop)
            self.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()


def _add_listener(properties: Path, far_port: int, proxy_port: int) -> None:
    text = properties.read_text()
    text = re.sub(r"^(listeners=.*)$", rf"\1,FAR://{LOOPBACK}:{far_port}", text, flags=re.MULTILINE)
    text = re.sub(r"^(advertised.listeners=.*)$", rf"\1,FAR://{LOOPBACK}:{proxy_port}", text, flags=re.MULTILINE)
    protocols = ",".join(f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", "FAR"))
    properties.write_text(f"{text}listener.security.protocol.map={protocols}\n")
