"""One frame at a time without the event loop: a connection of its own for the thread that publishes and waits.

A blocking client has its event loop on a thread. Whoever publishes one message or table, waits, and publishes the next
feels two changes of threads for each. Here the thread itself says PUBLISH on a plain socket and reads the answer. It is
a short cut and nothing else: whenever anything is in the way (the first messages, another thread, a lost connection),
the long way is taken, with the same frame if that may have been stored already.

The connection is opened for those who publish often, and closed when it has not been used for a while: nobody keeps it
alive with heartbeats.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from threading import Lock, get_ident
from time import monotonic

from penstock.acks import ALL
from penstock.client.sender import AT_ONCE_BYTES_MAX
from penstock.client.transport import Stored
from penstock.clock import Clock
from penstock.errors import ConnectionLost, PenstockError, ProtocolError
from penstock.frame import Frame
from penstock.limits import KIB
from penstock.net.connection import Place
from penstock.wire import words
from penstock.wire.conversation import ClientEnd, State, failure_in
from penstock.wire.packets import Kind, Packet

# Two within so long are often; a third of the shortest silence a broker of ours suffers.
OFTEN_S, REST_S = 1.0, 5.0
_TIME = Struct("@ll")
# Of a broker that takes longer, something else is the matter: the long way has the patience for it.
_OPEN_S, ANSWER_S = 1.0, 10.0
# An answer has less than a hundred.
_RECV_BYTES = 4 * KIB


class Express:
    """Any thread may use it; one at a time does."""

    def __init__(
        self, place: Place, clock: Clock, *, answer_s: float = ANSWER_S, now_s: Callable[[], float] = monotonic
    ) -> None:
        """`answer_s`: how long an answer is waited for."""
        self._answer_s = answer_s
        self._place = place
        self._clock = clock
        self._now_s = now_s
        self._lock = Lock()
        # The thread that is using it.
        self._user: int | None = None
        self._socket: socket.socket | None = None
        self._end = ClientEnd()
        self._used_at = float("-inf")
        # Not before that: it could not be opened the last time.
        self._closed_until = float("-inf")
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def publish_frame(self, topic: str, partition: int, frame: Frame, acks: str = ALL) -> Stored | None:
        """None: nobody knows whether it is stored, it is to go the long way. Raises what the broker says."""
        if len(frame.data) > AT_ONCE_BYTES_MAX or not self._enter():
            return None
        try:
            return self._exchange(topic, partition, frame, acks) if self._is_ready() else None
        except (OSError, ProtocolError, ConnectionLost):
            self._drop()
            return None
        except PenstockError:
            raise
        except BaseException:
            # Interrupted: its answer would be taken for that of the next one.
            self._drop()
            raise
        finally:
            self._user = None
            if self._is_closed:
                self.close()

    def _enter(self) -> bool:
        with self._lock:
            if self._user is not None:
                return False
            self._user = get_ident()
            return True

    def _is_ready(self) -> bool:
        now, used_at = self._now_s(), self._used_at
        self._used_at = now
        if self._socket is None:
            is_worth_it = now - used_at < OFTEN_S and now >= self._closed_until and not self._is_closed
            return is_worth_it and self._open()
        if now - used_at > REST_S:
            # The broker may be about to hang up.
            self._drop()
        return self._socket is not None

    def _open(self) -> bool:
        try:
            opened = socket.create_connection((self._place.host, self._place.port), _OPEN_S)
            try:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._place.tls is not None:
                    opened = self._place.tls.wrap_socket(opened, server_hostname=self._place.host)
                self._end, self._socket = ClientEnd(), opened
                opened.sendall(self._end.hello(self._place.client, self._place.key))
                while self._end.state is not State.OPEN:
                    for packet in self._received():
                        self._end.welcomed(packet)
                _be_patient(opened, self._answer_s)
            except BaseException:
                opened.close()
                raise
        except (OSError, PenstockError):
            # Whatever it is, the long way will tell.
            self._drop()
            self._closed_until = self._now_s() + REST_S
            return False
        return True

    def _exchange(self, topic: str, partition: int, frame: Frame, acks: str) -> Stored:
        assert self._socket is not None
        word = words.PublishFrame(topic, partition, acks)
        correlation, head = self._end.request(Kind.PUBLISH, word, len(frame.data))
        # The copy costs less than waking the broker twice.
        self._socket.sendall(b"".join((head, frame.data)))
        while True:
            for packet in self._received():
                if packet.correlation == correlation and packet.kind is Kind.REPLY:
                    stored = words.decoded(packet.header, words.Stored)
                    return Stored(stored.partition, stored.offset, stored.append_time, stored.partitions)
                if packet.correlation == correlation and packet.kind is Kind.FAILURE:
                    raise failure_in(packet)
                if packet.kind is Kind.PING:
                    self._socket.sendall(self._end.pong(self._clock.now_us()))

    def _received(self) -> list[Packet]:
        assert self._socket is not None
        data = self._socket.recv(_RECV_BYTES)
        if not data:
            raise ConnectionLost(f"{self._place} hung up")
        packet = self._end.receive_one(data)
        if packet is not None:
            return [packet]
        packets = list(self._end.receive(data))
        if packets and packets[-1].kind is Kind.GOODBYE:
            raise ConnectionLost(f"{self._place} said goodbye")
        return packets

    def _drop(self) -> None:
        dropped, self._socket = self._socket, None
        if dropped is not None:
            dropped.close()

    def rest(self) -> None:
        """Lets go of a connection that nobody has used for a while. Does not wait."""
        self._let_go(lambda: self._now_s() - self._used_at > REST_S)

    def close(self) -> None:
        """Does not wait: whoever is just publishing hears the answer, and closes it then."""
        self._is_closed = True
        self._let_go(lambda: True)

    def abandon(self) -> None:
        """The same, by a thread that was interrupted while it used this, or was about to."""
        if self._user == get_ident():
            self._drop()
            self._user = None
        self.close()

    def _let_go(self, is_time: Callable[[], bool]) -> None:
        if self._enter():
            try:
                if is_time():
                    self._say_goodbye()
            finally:
                self._user = None

    def _say_goodbye(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.sendall(self._end.goodbye("closed", "the client is done"))
            self._drop()


def _be_patient(opened: socket.socket, seconds: float) -> None:
    """As `settimeout`, but by the kernel: Python would ask before each call whether it may be made."""
    opened.settimeout(None)
    time = _TIME.pack(int(seconds), int(seconds % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        opened.setsockopt(socket.SOL_SOCKET, option, time)
