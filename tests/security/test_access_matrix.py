"""Every request of every door, with each right it needs and without it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from penstock.client import cluster_requests, placement
from penstock.errors import ConnectionLost, Forbidden, Unauthenticated
from penstock.server.access import Kind, Operation, Pattern, Right, Rule, Rules
from penstock.server.access_file import Access
from penstock.server.grpc import penstock_pb2 as pb
from penstock.server.guard import NEEDS
from penstock.server.keys import make
from penstock.server.receipts import Place, key_of, written
from penstock.wire import packets, words
from security.doors import Doors, knock
from security.table import GROUP, ROWS, SAMPLES, TOPIC, answer, prepare, sealed


def test_the_table_of_rights_has_every_request_and_so_has_this_one() -> None:
    of_nodes = {*cluster_requests.OF_NODES, *placement.OF_NODES}
    assert NEEDS.keys() == SAMPLES.keys() == words._REPLIES.keys() - of_nodes


# --- rules --------------------------------------------------------------------------------------------------

ME, ANOTHER = "acl-me", "acl-another"
_ME = (Pattern(ME, False),)
_OTHER_OPERATION = dict(zip(Operation, [*list(Operation)[1:], Operation.PUBLISH], strict=True))


def _rule(right: Right, *, allows: bool = True, is_prefix: bool = False, principals: tuple[Pattern, ...] = _ME) -> Rule:
    """On that name, or on those that start like it."""
    if right.kind is Kind.BROKER:
        names = (Pattern("", True),)
    else:
        names = (Pattern(right.name[:5], True),) if is_prefix else (Pattern(right.name, False),)
    return Rule(principals, frozenset([right.operation]), right.kind, names, allows)


def everything() -> list[Rule]:
    return [Rule(_ME, frozenset(Operation), kind, (Pattern("", True),), True) for kind in Kind]


def forbidding(rights: list[Right]) -> Iterator[tuple[str, list[Rule]]]:
    """All the ways in which one of them is missing."""
    yield "nothing", []
    yield "another's", [_rule(right, principals=(Pattern(ANOTHER, False),)) for right in rights]
    yield "denied to all", [*everything(), *(_rule(right, allows=False, principals=_prefix("")) for right in rights)]
    for right in rights:
        told = " ".join(right)
        others = [_rule(other) for other in rights if other != right]
        yield f"without {told}", others
        yield f"{told} denied", [*everything(), _rule(right, allows=False)]
        yield f"{told} denied by a prefix", [*everything(), _rule(right, allows=False, is_prefix=True)]
        yield (
            f"{told} allowed by a prefix and denied",
            [
                *(_rule(each, is_prefix=True) for each in rights),
                _rule(right, allows=False),
            ],
        )
        if right.kind is Kind.BROKER:
            yield f"{told} on topics and groups", [rule for rule in everything() if rule.kind is not Kind.BROKER]
        else:
            longer = right._replace(name=right.name + "x")
            yield f"{told} on a name that starts like it", [*others, _rule(longer), _rule(longer, is_prefix=False)]
            another = right._replace(kind=Kind.GROUP if right.kind is Kind.TOPIC else Kind.TOPIC)
            yield f"{told} on another kind", [*others, _rule(another)] if another not in rights else []
        operation = right._replace(operation=_OTHER_OPERATION[right.operation])
        yield f"another operation than {told}", [*others, _rule(operation)] if operation not in rights else []


def _prefix(text: str) -> tuple[Pattern, ...]:
    return (Pattern(text, True),)


def allowing(rights: list[Right]) -> Iterator[tuple[str, list[Rule]]]:
    yield "by name", [_rule(right) for right in rights]
    yield "by prefix", [_rule(right, is_prefix=True) for right in rights]
    yield "to principals by prefix", [_rule(right, principals=_prefix("acl-m")) for right in rights]
    denied = [_rule(right, allows=False, principals=(Pattern(ANOTHER, False),)) for right in rights]
    yield "and denied to another", [*(_rule(right) for right in rights), *denied]
    yield "everything", everything()


# --- the matrix ---------------------------------------------------------------------------------------------


def _access(path: Path) -> tuple[Path, str, Any]:
    key, kept = make(ME)
    file = path / "access.yaml"
    keys = [{"id": kept.id, "principal": kept.principal, "hash": kept.hash}]
    file.write_text(yaml.safe_dump({"keys": keys, "rules": []}), encoding="utf-8")
    return file, key, kept


def _set_rules(doors: Doors, rules: Iterable[Rule]) -> None:
    assert doors.gate._access is not None
    doors.gate._access = Access(doors.gate._access.keys, Rules(list(rules)))


@pytest.mark.parametrize("door", ROWS)
def test_what_is_not_allowed_is_forbidden_and_changes_nothing(tmp_path: Path, door: str) -> None:
    access, key, _ = _access(tmp_path)

    async def work(doors: Doors) -> None:
        await prepare(doors)
        before = doors.state()
        for name, (rights, ask) in ROWS[door]():
            _set_rules(doors, everything())
            assert await ask(doors, None) == Unauthenticated.code, name
            for how, rules in forbidding(rights) if rights else ():
                _set_rules(doors, rules)
                assert await ask(doors, key) == Forbidden.code, (name, how)
        assert doors.state() == before

    knock(tmp_path / "data", work, access=access)


@pytest.mark.parametrize("door", ROWS)
def test_what_is_allowed_is_not_forbidden(tmp_path: Path, door: str) -> None:
    access, key, _ = _access(tmp_path)

    async def work(doors: Doors) -> None:
        for name, (rights, ask) in ROWS[door]():
            for how, rules in allowing(rights):
                await prepare(doors)
                _set_rules(doors, rules)
                outcome = await ask(doors, key)
                assert outcome not in (Forbidden.code, Unauthenticated.code, "internal_error"), (name, how, outcome)

    knock(tmp_path / "data", work, access=access)


def test_nobody_copies_partitions_who_is_not_a_node(tmp_path: Path) -> None:
    access, key, _ = _access(tmp_path)

    async def work(doors: Doors) -> None:
        _set_rules(doors, everything())
        async with doors.connection(key) as connection:
            with pytest.raises(ConnectionLost, match="only nodes of the same cluster copy its partitions"):
                await connection.request(packets.Kind.REPLICATE, ["a", "disk", "process"])

    knock(tmp_path / "data", work, access=access)


def test_of_what_one_may_not_know_nothing_is_listed(tmp_path: Path) -> None:
    access, key, _ = _access(tmp_path)

    async def work(doors: Doors) -> None:
        await prepare(doors)
        headers = {"authorization": f"Bearer {key}"}
        metadata = tuple(headers.items())

        async def listed() -> list[list[str]]:
            async with doors.client(key) as q:
                native = [[topic.name for topic in await q.topics()], [group.name for group in await q.groups()]]
            web = [(await doors.web.get(f"/v1/{what}", headers=headers)).json()[what] for what in ("topics", "groups")]
            found = await doors.stub.ListTopics(pb.ListTopicsRequest(), metadata=metadata)
            groups = await doors.stub.ListGroups(pb.ListGroupsRequest(), metadata=metadata)
            remote = [[one.name for one in found.topics], [one.name for one in groups.groups]]
            assert native == [[one["name"] for one in some] for some in web] == remote
            return native

        _set_rules(doors, [])
        assert await listed() == [[], []]
        _set_rules(doors, [_rule(Right(Operation.DESCRIBE, Kind.TOPIC, TOPIC))])
        assert await listed() == [[TOPIC], []]
        _set_rules(doors, everything())
        assert await listed() == [[TOPIC], [GROUP]]
        _set_rules(doors, [*everything(), _rule(Right(Operation.DESCRIBE, Kind.GROUP, GROUP), allows=False)])
        assert await listed() == [[TOPIC], []]

    knock(tmp_path / "data", work, access=access)


def test_receipts_tell_nothing_to_those_who_may_not_consume(tmp_path: Path) -> None:
    """Whether there is such a topic, or such a lease."""
    access, key, _ = _access(tmp_path)

    async def work(doors: Doors) -> None:
        await prepare(doors)
        _set_rules(doors, [])
        headers, metadata = {"authorization": f"Bearer {key}"}, (("authorization", f"Bearer {key}"),)
        there, nowhere = sealed(doors), written(Place("nowhere", 0, 1, 0), key_of(doors.site.broker.secret, GROUP))
        for receipt in (there, nowhere, b"nonsense", None):
            request = pb.AckRequest(group=GROUP, receipts=[] if receipt is None else [receipt])
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await doors.stub.Ack(request, metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        for given in (answer(doors), {"receipts": ["nonsense"]}):
            reply = await doors.web.post(f"/v1/groups/{GROUP}/ack", json=given, headers=headers)
            assert (reply.status_code, reply.json()["code"]) == (403, Forbidden.code)

    knock(tmp_path / "data", work, access=access)
