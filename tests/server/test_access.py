"""Keys and rules: who may come in, and do what. Deny wins, and what nobody allowed is forbidden."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from penstock.client import cluster_requests, placement, requests
from penstock.client.client import Client
from penstock.errors import Forbidden, InvalidSetting, Unauthenticated
from penstock.server.access import Kind, Operation, Pattern, Right, Rule, Rules
from penstock.server.access_file import read
from penstock.server.guard import NEEDS
from penstock.server.keys import Key, Keys, make
from served import Served, serve

NOW_US = 1_800_000_000_000_000


def written(path: Path, keys: list[Key], rules: list[dict[str, Any]] | None) -> Path:
    file = path / "access.yaml"
    told = [{"id": key.id, "principal": key.principal, "hash": key.hash} for key in keys]
    # As an editor does it: the file is another one afterwards.
    content = {"keys": told} if rules is None else {"keys": told, "rules": rules}
    (path / "new").write_text(yaml.safe_dump(content), encoding="utf-8")
    os.replace(path / "new", file)
    return file


# --- keys ---------------------------------------------------------------------------------------------------


def test_a_key_tells_whose_it_is_and_nothing_else_does() -> None:
    key, kept = make("billing")
    old, expired = make("billing", expires_us=NOW_US)
    keys = Keys([kept, expired])
    assert keys.find(key, NOW_US).principal == "billing"
    assert key not in repr(kept)
    assert keys.find(old, NOW_US - 1).principal == "billing"
    prefix, identity, secret = key.split("_", 2)
    for wrong in (None, "", "pk", key[:-1], key + "x", f"{prefix}_{'0' * 12}_{secret}", f"xx_{identity}_{secret}", old):
        with pytest.raises(Unauthenticated):
            keys.find(wrong, NOW_US)
    with pytest.raises(Unauthenticated):
        keys.find("pk_\ud800_\ud800", NOW_US)


# --- rules --------------------------------------------------------------------------------------------------


def rule(principal: str, operation: Operation, names: str, *, allows: bool = True, kind: Kind = Kind.TOPIC) -> Rule:
    return Rule((Pattern.of(principal),), frozenset([operation]), kind, (Pattern.of(names),), allows)


PUBLISH = Operation.PUBLISH


@pytest.mark.parametrize(
    ("rules", "may"),
    [
        ([], False),
        ([rule("bob", PUBLISH, "orders")], True),
        ([rule("b*", PUBLISH, "ord*")], True),
        ([rule("*", PUBLISH, "*")], True),
        ([rule("bo", PUBLISH, "orders")], False),
        ([rule("bob", PUBLISH, "order")], False),
        ([rule("bob", Operation.READ, "orders")], False),
        ([rule("bob", PUBLISH, "orders", kind=Kind.GROUP)], False),
        ([rule("bob", PUBLISH, "orders"), rule("*", PUBLISH, "o*", allows=False)], False),
        ([rule("*", PUBLISH, "o*", allows=False), rule("bob", PUBLISH, "orders")], False),
        ([rule("bob", PUBLISH, "orders"), rule("eve", PUBLISH, "orders", allows=False)], True),
    ],
)
def test_nothing_is_allowed_but_what_a_rule_allows_and_none_denies(rules: list[Rule], may: bool) -> None:
    assert Rules(rules).allow("bob", Right(PUBLISH, Kind.TOPIC, "orders")) is may


def test_rules_of_one_principal_are_found_without_looking_at_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = Rules([rule(f"team{number}", PUBLISH, f"team{number}.*") for number in range(1_000)])
    seen: list[Rule] = []
    is_about = Rule.is_about
    monkeypatch.setattr(Rule, "is_about", lambda one, right: seen.append(one) or is_about(one, right))
    assert rules.allow("team7", Right(PUBLISH, Kind.TOPIC, "team7.orders"))
    assert not rules.allow("team7", Right(PUBLISH, Kind.TOPIC, "team8.orders"))
    assert len(seen) == 2


@pytest.mark.parametrize("seed", range(20))
def test_rules_by_principal_allow_what_all_of_them_together_do(seed: int) -> None:
    random = Random(seed)
    names = ["a", "ab", "abc", "b", "*", "a*", "ab*"]
    rules = [
        Rule(
            tuple(map(Pattern.of, random.sample(names, random.randint(1, 3)))),
            frozenset([PUBLISH]),
            Kind.TOPIC,
            tuple(map(Pattern.of, random.sample(names, random.randint(1, 2)))),
            random.random() < 0.7,
        )
        for _ in range(random.randint(0, 8))
    ]
    for principal in ("a", "ab", "abc", "b", "c"):
        for name in ("a", "ab", "x"):
            right = Right(PUBLISH, Kind.TOPIC, name)
            about = [one.allows for one in rules if one.is_for(principal) and one.is_about(right)]
            assert Rules(rules).allow(principal, right) is (bool(about) and all(about))


def test_without_rules_everything_is_allowed() -> None:
    Rules(None).check("bob", [Right(Operation.ADMIN, Kind.TOPIC, "orders")])


def test_every_request_needs_some_right_or_is_a_list_of_what_one_may_know() -> None:
    found = [*vars(requests).values(), *vars(placement).values(), *vars(cluster_requests).values()]
    kinds = {one for one in found if isinstance(one, type) and issubclass(one, requests.Request)}
    assert set(NEEDS) == kinds - {requests.Request, *placement.OF_NODES, *cluster_requests.OF_NODES}


# --- the file -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[]", "keys, rules and quotas, and nothing else"),
        ("{keys: {}}", "keys must be a list"),
        ("{keys: [{id: a}]}", r"keys\[0\] has id"),
        ("{keys: [{id: 5, principal: x, hash: y}]}", r"keys\[0\].id must be text"),
        ("{keys: [{id: a, principal: x, hash: y, expires: soon}]}", "expires is a time"),
        ("{keys: [{id: a, principal: x, hash: y}, {id: a, principal: z, hash: y}]}", "the same id"),
        ("{rules: [{principals: [a], operations: [fly], topics: [t]}]}", r"rules\[0\].operations are publish"),
        ("{rules: [{principals: [a], operations: [read]}]}", "must name topics, groups or broker"),
        ("{rules: [{principals: a, operations: [read], topics: [t]}]}", "principals must be a list"),
        ("{rules: [{principals: [a], operations: [read], topics: [t], effect: maybe}]}", "allow or deny"),
        ("{rules: [{who: [a]}]}", r"rules\[0\] has"),
        ("{", "is not YAML"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "access.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(InvalidSetting, match=told):
        read(tmp_path / "access.yaml")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="can't be read"):
        read(tmp_path / "nowhere.yaml")


def test_a_key_in_the_file_may_end(tmp_path: Path) -> None:
    key, kept = make("billing")
    content = f"keys: [{{id: '{kept.id}', principal: billing, hash: {kept.hash}, expires: 2027-01-15T08:00:00Z}}]"
    (tmp_path / "access.yaml").write_text(content, encoding="utf-8")
    access = read(tmp_path / "access.yaml")
    assert access.keys.find(key, NOW_US - 1).principal == "billing"
    with pytest.raises(Unauthenticated):
        access.keys.find(key, NOW_US)


# --- on a port ----------------------------------------------------------------------------------------------

ALLOWED: list[dict[str, Any]] = [
    {
        "principals": ["root"],
        "operations": [operation.value for operation in Operation],
        "topics": ["*"],
        "groups": ["*"],
        "broker": True,
    },
    {"principals": ["shop"], "operations": ["publish", "describe"], "topics": ["orders"]},
    {"principals": ["work"], "operations": ["consume", "read", "describe"], "topics": ["ord*"], "groups": ["work*"]},
]

Act = Callable[[Client], Awaitable[object]]
ACTS: dict[str, tuple[Act, set[str]]] = {
    "publish": (lambda q: q.publish("orders", b"x"), {"root", "shop"}),
    "publish elsewhere": (lambda q: q.publish("secret", b"x"), {"root"}),
    "consume": (lambda q: q.consumer("workers", "orders").poll(), {"root", "work"}),
    "consume as another group": (lambda q: q.consumer("others", "orders").poll(), {"root"}),
    "consume another topic": (lambda q: q.consumer("workers", "secret").poll(), {"root"}),
    "read": (lambda q: anext(aiter(q.reader("orders"))), {"root", "work"}),
    "trace": (lambda q: q.trace("orders:0:0"), {"root", "work"}),
    "look into another topic": (lambda q: q.message("secret:0:0"), {"root"}),
    "describe": (lambda q: q.topic("orders"), {"root", "shop", "work"}),
    "create": (lambda q: q.create_topic("orders.new"), {"root"}),
    "change": (lambda q: q.change_topic("orders", partitions=2), {"root"}),
    "seek": (lambda q: q.seek("workers", "orders", "earliest"), {"root"}),
    "redrive": (lambda q: q.dead_letters.redrive("orders"), {"root"}),
    "schedules": (lambda q: q.schedules.list(), {"root"}),
    "delete": (lambda q: q.delete_topic("orders"), {"root"}),
}


def test_each_may_do_what_the_rules_say_and_nothing_else(tmp_path: Path) -> None:
    made = {name: make(name) for name in ("shop", "work", "root")}
    access = written(tmp_path, [kept for _, kept in made.values()], ALLOWED)

    async def work(here: Served) -> None:
        async with here.client(made["root"][0]) as q:
            for topic in ("orders", "secret"):
                await q.create_topic(topic, partitions=1)
                await q.publish(topic, b"first")
        for principal, (key, _) in made.items():
            async with here.client(key) as q:
                for name, (act, allowed) in ACTS.items():
                    if principal in allowed:
                        await act(q)
                    else:
                        with pytest.raises(Forbidden, match=f"{principal} may not"):
                            await act(q)
                        assert name
                assert [topic.name for topic in await q.topics()] == {
                    "shop": ["orders"],
                    "work": ["orders"],
                    "root": ["orders.new", "secret"],
                }[principal]

    serve(tmp_path / "data", work, access=access)


def test_without_a_key_or_with_a_wrong_one_nobody_comes_in(tmp_path: Path) -> None:
    key, kept = make("root")
    access = written(tmp_path, [kept], None)

    async def work(here: Served) -> None:
        for wrong in (None, "", key[:-2]):
            with pytest.raises(Unauthenticated):
                async with here.client(wrong):
                    pass
        async with here.client(key) as q:
            await q.create_topic("t")

    serve(tmp_path / "data", work, access=access)


def test_a_consumer_is_held_to_rules_that_change_between_its_polls(tmp_path: Path) -> None:
    key, kept = make("root")
    access = written(tmp_path, [kept], None)

    async def work(here: Served) -> None:
        async with here.client(key) as q:
            await q.create_topic("t")
            async with q.consumer("g", "t") as consumer:
                assert await consumer.poll(1) == []
                written(tmp_path, [kept], [])
                await here.door.gate.refresh()
                with pytest.raises(Forbidden):
                    await consumer.poll(1)
                written(tmp_path, [kept], None)
                await here.door.gate.refresh()
                assert await consumer.poll(1) == []

    serve(tmp_path / "data", work, access=access)


def test_keys_are_replaced_and_rules_changed_while_it_runs(tmp_path: Path) -> None:
    (old, old_kept), (new, new_kept) = make("root"), make("root")
    access = written(tmp_path, [old_kept], None)

    async def work(here: Served) -> None:
        async with here.client(old) as q:
            await q.create_topic("t")
            written(tmp_path, [old_kept, new_kept], None)
            await here.door.gate.refresh()
            async with here.client(new):
                pass
            written(tmp_path, [new_kept], [])
            await here.door.gate.refresh()
            with pytest.raises(Unauthenticated):
                async with here.client(old):
                    pass
            # Also of a client that is connected with it.
            with pytest.raises(Unauthenticated):
                await q.publish("t", b"x")
            access.write_text("nonsense: [", encoding="utf-8")
            await here.door.gate.refresh()
            async with here.client(new) as other:
                with pytest.raises(Forbidden):
                    await other.publish("t", b"x")

    serve(tmp_path / "data", work, access=access)
