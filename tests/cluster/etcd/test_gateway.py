"""What the client makes of members that answer wrongly, or not at all: pretended ones, on real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from etcd_support import Pretender, answered, changes, opened, run, status
from penstock.cluster.etcd.store import Put, Won
from penstock.errors import (
    EtcdRefused,
    EtcdReplaced,
    EtcdRequestTooLarge,
    EtcdUnavailable,
    EtcdVersionRefused,
    OutcomeUnknown,
    PenstockError,
    SessionLost,
    WatchBehind,
)

Answer = Callable[[bytes], bytes | None]
HEADER = {"cluster_id": "7", "revision": "5"}
DONE = answered({"header": {**HEADER, "revision": "6"}, "succeeded": True})


@contextmanager
def pretending(first: bytes | None = None, **answers: Answer) -> Iterator[Pretender]:
    """By the last part of the path; the status is good unless said otherwise."""

    def answer(path: str, body: bytes) -> bytes | None:
        name = path.rpartition("/")[2]
        if name in answers:
            return answers[name](body)
        return (first or status()) if name == "status" else answered(b"Not Found\n", "404 Not Found")

    pretender = Pretender(answer)
    try:
        yield pretender
    finally:
        pretender.close()


def failed(code: int, words: str, http: str) -> bytes:
    return answered({"error": words, "message": words, "code": code}, http)


def committed(answer: bytes | None, raises: type[PenstockError], match: str) -> list[str]:
    """Which paths were asked by one commit that fails."""
    with pretending(txn=lambda _: answer) as pretender:

        async def work() -> None:
            async with opened(pretender.address, request_s=1.5) as store:
                with pytest.raises(raises, match=match) as caught:
                    await store.commit({}, [Put("/a", b"1")])
                assert type(caught.value) is raises

        run(work)
        return pretender.paths


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (None, "the connection was closed before the answer was complete"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "no answer within"),
        (b"\x15\x03\x01nonsense\r\n\r\n", "is not HTTP"),
        (answered(b"{"), "not an answer of etcd"),
        (answered({"header": {"revision": "many"}}), "not an answer of etcd"),
        (answered(b"bad gateway", "502 Bad Gateway"), "HTTP 502: bad gateway"),
        (failed(14, "etcdserver: request timed out", "503 Service Unavailable"), "request timed out"),
        (failed(14, "etcdserver: leader changed", "503 Service Unavailable"), "leader changed"),
        (failed(4, "context deadline exceeded", "504 Gateway Timeout"), "deadline exceeded"),
        (failed(2, "something", "500 Internal Server Error"), "something"),
        (failed(8, "grpc: received message larger than max (5 vs. 4)", "429 Too Many Requests"), "larger than max"),
    ],
)
def test_a_commit_that_was_sent_and_not_answered_well_is_unknown_and_not_sent_again(
    answer: bytes | None, match: str
) -> None:
    paths = committed(answer, OutcomeUnknown, match)
    assert paths.count("/v3/kv/txn") == 1


@pytest.mark.parametrize(
    ("answer", "raises", "match"),
    [
        (failed(8, "etcdserver: too many requests", "429 Too Many Requests"), EtcdUnavailable, "too much to do"),
        (failed(8, "etcdserver: mvcc: database space exceeded", "429 Too Many"), EtcdRefused, "has no room left"),
        (failed(7, "etcdserver: permission denied", "403 Forbidden"), EtcdRefused, "refuses: etcdserver: permission"),
        (
            failed(3, "etcdserver: request is too large", "400 Bad Request"),
            EtcdRequestTooLarge,
            "does not take so much",
        ),
        (failed(5, "etcdserver: requested lease not found", "404 Not Found"), SessionLost, "nothing was changed"),
        # As etcd 3.6 tells it.
        (
            answered({"code": 7, "message": "etcdserver: permission denied", "details": []}, "403 Forbidden"),
            EtcdRefused,
            "etcdserver: permission denied",
        ),
        (answered(b"Not Found\n", "404 Not Found"), EtcdRefused, "HTTP 404: Not Found"),
    ],
)
def test_a_commit_that_etcd_says_it_has_not_carried_out_is_told_so(
    answer: bytes, raises: type[PenstockError], match: str
) -> None:
    assert committed(answer, raises, match).count("/v3/kv/txn") == 1


def test_a_read_goes_to_the_next_member_and_later_ones_stay_there() -> None:
    items = answered(
        {"header": HEADER, "kvs": [{"key": "L2E=", "value": "MQ==", "mod_revision": "3", "create_revision": "2"}]}
    )
    unavailable = failed(14, "etcdserver: leader changed", "503 Service Unavailable")
    with (
        pretending(range=lambda _: unavailable) as first,
        pretending(status(leader=0)) as leaderless,
        pretending(range=lambda _: items, txn=lambda _: DONE) as last,
    ):

        async def work() -> None:
            async with opened([first.address, leaderless.address, last.address]) as store:
                for _ in range(2):
                    assert (await store.get("/a")).items["/a"] == ("/a", b"1", 3, 2)
                assert await store.commit({}, [Put("/a", b"2")]) == Won(6)
            assert first.paths == ["/v3/maintenance/status", "/v3/kv/range"]
            # Nothing is asked of a member that has no leader.
            assert leaderless.paths == ["/v3/maintenance/status"]
            assert last.paths == ["/v3/maintenance/status", "/v3/kv/range", "/v3/kv/range", "/v3/kv/txn"]

        run(work)


def test_when_nobody_answers_each_is_named_with_what_it_said() -> None:
    with pretending(status(leader=0)) as leaderless, pretending(answered(b"hello")) as other:

        async def work() -> None:
            async with opened(["http://127.0.0.1:9", leaderless.address, other.address]) as store:
                with pytest.raises(EtcdUnavailable) as caught:
                    await store.get("/a")
                nobody, without, strange = caught.value.details["members"]
                assert nobody.startswith("http://127.0.0.1:9: ")
                assert without == f"{leaderless.address}: it has no leader"
                assert strange.startswith(f"{other.address}: it does not tell its status: what came is not an answer")
                assert caught.value.retriable

        run(work)


def test_a_version_that_can_corrupt_its_data_is_refused_before_anything_is_asked() -> None:
    with pretending(status("3.5.4"), txn=lambda _: DONE) as pretender:

        async def work() -> None:
            async with opened(pretender.address) as store:
                for _ in range(2):
                    with pytest.raises(EtcdVersionRefused, match=r"etcd 3\.5\.4 at http.* can corrupt its data"):
                        await store.commit({}, [Put("/a", b"1")])

        run(work)
        assert set(pretender.paths) == {"/v3/maintenance/status"}


@pytest.mark.parametrize(
    ("version", "match"),
    [("3.3.27", r"etcd 3\.3\.27 at .* is too old"), ("3.5.30", "has its gateway switched off, or elsewhere")],
)
def test_an_etcd_whose_gateway_is_elsewhere_tells_its_version(version: str, match: str) -> None:
    missing = answered(b"404 page not found\n", "404 Not Found")
    with pretending(missing, version=lambda _: answered({"etcdserver": version, "etcdcluster": "3.3.0"})) as pretender:

        async def work() -> None:
            async with opened(pretender.address) as store:
                with pytest.raises(EtcdVersionRefused, match=match):
                    await store.get("/a")

        run(work)


def test_versions_that_lack_fixes_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    def closing(_: bytes) -> bytes:
        return answered({"header": HEADER}).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)

    with pretending(status("3.5.9"), range=closing) as pretender:

        async def work() -> None:
            async with opened(pretender.address) as store:
                for _ in range(3):
                    assert (await store.get("/a")).items == {}

        run(work)
        # Each on a connection of its own, which is looked at again.
        assert pretender.paths.count("/v3/maintenance/status") == 3
        assert [record.message for record in caplog.records] == [
            f"etcd 3.5.9 at {pretender.address} lacks fixes: use 3.5.28 or later"
        ]


def test_an_answer_larger_than_may_be_is_not_taken_in() -> None:
    with pretending(range=lambda _: answered(bytes(200_000))) as pretender:

        async def work() -> None:
            async with opened(pretender.address, response_bytes_max=100_000) as store:
                with pytest.raises(EtcdRefused, match=r"/a holds a value that is larger than .* 100000 bytes"):
                    await store.get("/a")
            # Asked for fewer keys each time, and at last for one.
            assert 3 < pretender.paths.count("/v3/kv/range") < 8

        run(work)


def test_a_prefix_that_holds_more_than_may_be_is_refused() -> None:
    item = {"key": "L2E=", "value": "A" * 40_000, "mod_revision": "3"}
    with pretending(range=lambda _: answered({"header": HEADER, "kvs": [item], "more": True})) as pretender:

        async def work() -> None:
            async with opened(pretender.address, snapshot_bytes_max=100_000) as store:
                with pytest.raises(EtcdRefused, match="/a in etcd has more than 100000 bytes"):
                    await store.get("/a")

        run(work)


def test_a_store_that_is_at_a_lower_revision_than_before_is_no_longer_trusted() -> None:
    revisions = iter([9, 4])
    with pretending(
        range=lambda _: answered({"header": {"cluster_id": "7", "revision": str(next(revisions))}})
    ) as pretender:

        async def work() -> None:
            async with opened(pretender.address) as store:
                await store.get("/a")
                with pytest.raises(EtcdReplaced, match="is at revision 4 and was at 9 before"):
                    await store.get("/a")

        run(work)


def test_reads_that_overtake_each_other_are_no_sign_of_a_store_set_back() -> None:
    """The answer of the first is on its way while the second is asked and answered."""
    later = asyncio.Event()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        calls: list[int] = []

        def answer(_: bytes) -> bytes:
            calls.append(1)
            if len(calls) == 1:
                asyncio.run_coroutine_threadsafe(later.wait(), loop).result()
                return answered({"header": {"cluster_id": "7", "revision": "4"}})
            return answered({"header": {"cluster_id": "7", "revision": "9"}})

        with pretending(range=answer) as pretender:
            async with opened(pretender.address) as store:
                slow = asyncio.create_task(store.get("/a"))
                while not calls:
                    await asyncio.sleep(0)
                assert (await store.get("/a")).revision == 9
                later.set()
                assert (await slow).revision == 4

    run(work)


def stream(*lines: dict[str, Any], split: int = 1_000) -> bytes:
    """As chunks of so many bytes, without an end."""
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    chunks = [body[begin : begin + split] for begin in range(0, len(body), split)]
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(
        b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks
    )


CREATED = {"result": {"header": HEADER, "created": True}}


def event(revision: int) -> dict[str, Any]:
    return {"kv": {"key": "L2E=", "value": "MQ==", "mod_revision": str(revision)}}


@pytest.mark.parametrize("split", [1, 7, 1_000])
def test_lines_of_a_watch_may_come_in_pieces_and_answers_in_fragments(split: int) -> None:
    lines = [
        CREATED,
        {"result": {"header": HEADER, "events": [event(6)], "fragment": True}},
        {"result": {"header": HEADER, "events": [{**event(6), "type": "DELETE"}]}},
        {"result": {"header": HEADER, "events": [event(7)]}},
    ]
    with pretending(watch=lambda _: stream(*lines, split=split)) as pretender:

        async def work() -> None:
            async with opened(pretender.address) as store:
                told = []
                async for each in store.watch("/a", 6):
                    told.append(each)
                    if len(told) == 2:
                        break
                assert [(len(each.changes), each.revision) for each in told] == [(2, 6), (1, 7)]
                assert [change.item is None for change in told[0].changes] == [False, True]

        run(work)


@pytest.mark.parametrize(
    ("line", "raises", "match"),
    [
        (
            {"error": {"grpc_code": 14, "http_code": 503, "message": "etcdserver: no leader"}},
            EtcdUnavailable,
            "no leader",
        ),
        ({"error": {"code": 14, "message": "transport is closing", "details": []}}, EtcdUnavailable, "is closing"),
        (
            {"error": {"grpc_code": 8, "message": "grpc: received message larger than max (9 vs. 4)"}},
            WatchBehind,
            "too much has happened",
        ),
        ({"error": {"grpc_code": 7, "message": "etcdserver: permission denied"}}, EtcdRefused, "permission denied"),
        ({"result": {"header": HEADER, "canceled": True, "compact_revision": "5"}}, WatchBehind, "before revision 5"),
        ({"result": {"header": HEADER, "canceled": True, "cancel_reason": "moved"}}, EtcdUnavailable, "watch: moved"),
        ({"surprise": True}, EtcdUnavailable, "no reason given"),
        ([], EtcdUnavailable, "not an answer of etcd"),
    ],
)
def test_a_watch_that_etcd_ends_ends_by_an_error(line: Any, raises: type[PenstockError], match: str) -> None:
    with pretending(watch=lambda _: stream(CREATED, line)) as pretender:

        async def work() -> None:
            async with opened(pretender.address) as store:
                with pytest.raises(raises, match=match):
                    await changes(store, "/a", 6, 1)

        run(work)


def test_a_watch_that_does_not_begin_in_time_is_left() -> None:
    with pretending(watch=lambda _: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n") as silent:

        async def work() -> None:
            async with opened(silent.address, request_s=1.0) as store:
                with pytest.raises(EtcdUnavailable, match=r"did not begin a watch in 1 s"):
                    await changes(store, "/a", 6, 1)

        run(work)


def test_too_much_at_once_ends_a_watch_so_that_all_is_read_again() -> None:
    fragment = {"result": {"header": HEADER, "events": [event(6)] * 100, "fragment": True}}
    with pretending(watch=lambda _: stream(CREATED, *([fragment] * 20))) as pretender:

        async def work() -> None:
            async with opened(pretender.address, response_bytes_max=100_000) as store:
                with pytest.raises(WatchBehind, match="too much has happened to be told at once"):
                    await changes(store, "/a", 6, 1)

        run(work)


def test_requests_beyond_those_that_may_be_under_way_wait_only_so_long() -> None:
    with pretending(range=lambda _: b"") as silent:

        async def work() -> None:
            async with opened(silent.address, connections_max=1, request_s=0.3) as store:
                first = asyncio.create_task(store.get("/a"))
                while "/v3/kv/range" not in silent.paths:
                    await asyncio.sleep(0)
                second = asyncio.create_task(store.get("/a"))
                outcomes = await asyncio.gather(first, second, return_exceptions=True)
                assert [type(outcome) for outcome in outcomes] == [EtcdUnavailable] * 2

        run(work)
