"""What a client may not ask for is not read: it must not cost more than the refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import yaml

from penstock.client.answers import Ack
from penstock.client.requests import ListTopics
from penstock.errors import Forbidden, InvalidInput
from penstock.limits import KIB, MIB
from penstock.net.remote import _ACK_RUNS_MAX
from penstock.server import session
from penstock.server.http.asking import check_nesting, decoded
from penstock.server.http.invalid_body import invalid_body
from penstock.server.keys import make
from penstock.wire import words
from penstock.wire.conversation import ACKS_BYTES_MAX, WORD_BYTES_MAX
from penstock.wire.packets import Kind
from security.doors import Doors, opened


def _access(path: Path) -> tuple[Path, str]:
    """With one key, which may do nothing to any topic that there is."""
    key, kept = make("nobody")
    rules = [{"principals": ["nobody"], "operations": ["describe"], "topics": ["none"]}]
    keys = [{"id": kept.id, "principal": kept.principal, "hash": kept.hash}]
    file = path / "access.yaml"
    file.write_text(yaml.safe_dump({"keys": keys, "rules": rules}), encoding="utf-8")
    return file, key


def _with_a_useless_key(path: Path, work: Callable[[Doors, str], Awaitable[None]]) -> None:
    async def run() -> None:
        access, key = _access(path)
        async with opened(path / "data", access=access) as doors:
            await work(doors, key)

    asyncio.run(run())


@pytest.mark.parametrize("kind", [Kind.JOIN, Kind.POLL, Kind.SUBSCRIBE, Kind.READ, Kind.ANSWER])
def test_a_client_names_no_million_topics(tmp_path: Path, kind: Kind) -> None:
    async def work(doors: Doors, key: str) -> None:
        async with doors.connection(key) as connection:
            with pytest.raises(Exception, match=f"{kind.name} with a header of") as told:
                await connection.request(kind, ["g", "c", [""] * WORD_BYTES_MAX])
            assert told.value.code == "packet_too_large" or "packet_too_large" in str(told.value.details)

    _with_a_useless_key(tmp_path, work)


def test_a_consumer_of_too_many_topics_is_refused_before_its_rights_are_looked_at(tmp_path: Path) -> None:
    async def work(doors: Doors, key: str) -> None:
        async with doors.connection(key) as connection:
            word = words.Poll("g", "c", ("",) * 10_000, 1, 1, 0)
            with pytest.raises(Forbidden):
                await connection.request(Kind.POLL, word)

    _with_a_useless_key(tmp_path, work)


def test_offsets_are_not_looked_at_without_the_right_to_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*given: object) -> None:
        raise AssertionError("looked at")

    monkeypatch.setattr(session, "from_runs", never)
    runs = [number for start in range(5_000) for number in (2 * start, 1)]

    async def work(doors: Doors, key: str) -> None:
        async with doors.connection(key) as connection:
            with pytest.raises(Forbidden):
                await connection.request(Kind.ANSWER, words.Answered("g", "t", 0, 1, runs, Ack()))
            with pytest.raises(Forbidden):
                await connection.request(Kind.ACKS, words.Acked("g", "t", 0, [(1, runs)]))

    _with_a_useless_key(tmp_path, work)


def test_a_frame_is_not_looked_at_without_the_right_to_publish(tmp_path: Path) -> None:
    async def work(doors: Doors, key: str) -> None:
        async with doors.connection(key) as connection:
            with pytest.raises(Forbidden):
                await connection.request(Kind.PUBLISH, words.PublishFrame("t", 0), [b"no frame"])

    _with_a_useless_key(tmp_path, work)


def test_a_request_that_needs_no_right_is_small(tmp_path: Path) -> None:
    async def work(doors: Doors, key: str) -> None:
        async with doors.connection(key) as connection:
            with pytest.raises(InvalidInput, match="it may have"):
                await connection.request(Kind.CALL, ListTopics(after="", names=("",) * (1 * MIB)))

    _with_a_useless_key(tmp_path, work)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/topics/t/publish",
        "/v1/topics/t/publish/batch",
        "/v1/topics/t/dead-letters/redrive",
        "/v1/groups/g/poll",
        "/v1/groups/g/ack",
        "/v1/groups",
        "/v1/topics",
    ],
)
def test_a_large_body_is_not_read_of_a_client_that_may_not_send_it(tmp_path: Path, path: str) -> None:
    async def work(doors: Doors, key: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", doors.http_port)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: {64 * KIB}\r\n\r\n"
        # The body does not come: who waits for it waits for ten seconds, and answers something else.
        writer.write(head.encode())
        assert (await reader.readline()).split()[1] == b"403"
        writer.close()

    _with_a_useless_key(tmp_path, work)


def test_a_list_that_is_far_too_long_is_refused_before_it_is_decoded() -> None:
    async def run(body: bytes) -> object:
        return await decoded(body, msgspec.json.Decoder(dict[str, list[msgspec.Raw]]), 32, 100)

    def listed(count: int) -> bytes:
        return b'{"a": [' + b",".join([b'"\\\\,\\","'] * count) + b"]}"

    assert len(asyncio.run(run(listed(150)))["a"]) == 150  # type: ignore[index]
    with pytest.raises(InvalidInput, match="100 items"):
        asyncio.run(run(listed(300)))


def test_nesting_is_counted_over_the_parts_that_a_body_is_looked_through_in() -> None:
    for escaped in (b"", b'\\"', b"\\\\"):
        for size in range(256 * KIB - 8, 256 * KIB + 8):
            string = b'"' + b"x" * (size - len(escaped)) + escaped + b'[[["'
            check_nesting(b"[[" + string + b"]]", 2)


def test_an_unknown_field_with_a_long_name_is_not_repeated() -> None:
    class Kind(msgspec.Struct, forbid_unknown_fields=True):
        name: str = ""

    with pytest.raises(msgspec.ValidationError) as found:
        msgspec.json.decode(b'{"' + b"z" * MIB + b'": 0}', type=Kind)
    assert len(invalid_body(found.value, Kind).message) < 1_000


def test_methods_that_a_client_makes_up_are_counted_as_one(tmp_path: Path) -> None:
    async def work(doors: Doors, key: str) -> None:
        for method in ("PROPFIND", "MKCOL", "LOCK"):
            for path in ("/health", "/metrics"):
                assert (await doors.web.request(method, path)).status_code == 405
        kinds = {str(one) for one in doors.http._counts.requests}
        assert not [kind for kind in kinds if "PROPFIND" in kind]

    _with_a_useless_key(tmp_path, work)


def test_the_python_client_acknowledges_in_packets_that_a_broker_takes() -> None:
    # A number has 9 bytes at most.
    assert 9 * _ACK_RUNS_MAX < ACKS_BYTES_MAX
