"""The story, chapter by chapter. What is printed was asked of the broker; what is claimed is checked."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.demo.shop import Shop
from penstock.cli.demo.telling import until
from penstock.cli.demo.workers import Done
from penstock.cli.output import Column
from penstock.cli.shown import counted, shown_bytes, shown_span, shown_text
from penstock.clock import rfc3339

if TYPE_CHECKING:
    from penstock.client.sending import Sending
    from penstock.published import Published

CANCEL_AFTER = "6s"
_EXPECTED_OF_POISON = {"DELIVERED", "NACKED", "REDELIVERED", "DEAD_LETTERED", "REDRIVEN", "ACKNOWLEDGED"}


class Killed(NamedTuple):
    """When the broker was killed, and the orders around that."""

    time_us: int
    orders: list[Published]


def tell_all(shop: Shop) -> None:
    topics(shop)
    with ExitStack() as workers:
        workers.enter_context(shop.billing_worker("anna"))
        two_groups(shop)
        workers.enter_context(shop.analytics_worker())
        rebalance(shop, workers)
        priorities(shop)
        workers.enter_context(shop.stock_worker())
        unpaid = cancellations(shop)
        killed = kill(shop)
        not_paid(shop, unpaid, killed)
        trace(shop, poison(shop))
    replay(shop, killed)
    end(shop)


def topics(shop: Shop) -> None:
    q, tell, server = shop.q, shop.tell, shop.server
    tell.chapter(
        "A broker, from nothing",
        f"`penstock serve` runs as process {server.pid}, in an empty directory, at {server.address}.",
        f"Its dashboard is at {server.dashboard} while this runs.",
    )
    q.create_topic("orders", partitions=4)
    q.create_topic("payments", partitions=1)
    q.create_topic("cancellations", partitions=1)
    names = [topic.name for topic in q.topics()]
    tell.check(len(names) == 3, f"It has the topics {', '.join(names)}", names)


def two_groups(shop: Shop) -> None:
    tell = shop.tell
    tell.chapter(
        "Orders, and two groups that do not wait for each other",
        "Billing has a worker, Anna. Analytics has none yet.",
    )
    first = shop.publish_orders(24)
    done = shop.all_done(shop.billing, first)
    example = shop.q.message(done[0].id)
    tell.say(f"An order is {(example.value or b'').decode()}, and its key is {shown_bytes(example.key)}.")
    tell.check(len(done) == len(first) == 24, "24 orders are on disk, and billing has done each of them once", done)
    with shop.analytics_worker():
        seen = shop.all_done(shop.analytics, first)
    tell.check({each.id for each in seen} == first, "Analytics comes later, and gets the same 24", seen)
    more = shop.publish_orders(8)
    shop.all_done(shop.billing, more)
    tell.say(f"Analytics goes home, and {len(more)} more orders come:")
    shop.show_groups()
    found = shop.to_do("billing"), shop.to_do("analytics")
    tell.check(found == (0, len(more)), "Billing is done with them; for analytics they wait", *found)


def rebalance(shop: Shop, workers: ExitStack) -> None:
    tell = shop.tell
    tell.chapter("A second worker: partitions move", "Ben joins Anna in billing.")
    before = shop.partitions("billing")
    workers.enter_context(shop.billing_worker("ben"))
    after = until(lambda: shop.partitions("billing"), lambda now: len(now.get("ben", ())) == 2, "Ben has his share")
    rows = [(name, _listed(before.get(name, ())), _listed(after[name])) for name in after]
    tell.table(["worker", "partitions before", "partitions now"], rows)
    owned = sorted([*after["anna"], *after["ben"]])
    is_shared = len(after["anna"] & before["anna"]) == 2 and owned == [0, 1, 2, 3]
    tell.check(is_shared, "Anna keeps two of hers, and Ben has the others", after)
    ids = shop.publish_orders(40)
    done = shop.all_done(shop.billing, ids)
    shares = {name: sum(each.worker == name for each in done) for name in after}
    told = " and ".join(f"{share} by {name.capitalize()}" for name, share in shares.items())
    tell.check(len(done) == len(ids) and all(shares.values()), f"40 orders, each done once: {told}", shares)
    tell.check(_is_in_order(done), "Those of one customer were done in the order they came", done)


def priorities(shop: Shop) -> None:
    q, tell = shop.q, shop.tell
    tell.chapter("Payments that overtake", "200 payments wait at the till, which takes them one by one.")
    with q.producer("payments") as producer:
        for number in range(200):
            producer.send(f"payment {number}")
    taken: list[str] = []
    with q.consumer("till", "payments", prefetch=5) as till:
        for message in islice(till, 23):
            message.ack()
        express = [q.publish("payments", f"express {number}", priority="high").id for number in range(3)]
        waiting = shop.to_do("till") - len(express)
        tell.say(f"After 23 of them, three express payments are published, behind {waiting} others. The till goes on:")
        while not set(express) <= set(taken):
            message = next(till)
            message.ack()
            taken.append(message.id)
        for message in islice(till, shop.to_do("till")):
            message.ack()
    rows = [(id, shown_bytes(q.message(id).value), _latency(shop, id, "till")) for id in taken]
    tell.table(["message", "value", Column("published to done", is_number=True)], rows)
    between = len(taken) - len(express)
    tell.check(
        taken[between:] == express and between < 5,
        f"They overtake {waiting - between} others: all but {between} that the till had in its hands already",
        taken,
    )
    tell.check(shop.to_do("till") == 0, "Then the till takes the rest")


def cancellations(shop: Shop) -> Published:
    """The cancellation that nobody calls off."""
    q, tell = shop.q, shop.tell
    tell.chapter(
        f"Cancelled after {CANCEL_AFTER}, unless paid",
        "With each order, its cancellation is published with a delay. Who pays in time has it called off.",
    )
    ann, bob = (q.publish("cancellations", shop.order(who), key=who, delay=CANCEL_AFTER) for who in ("ann", "bob"))
    scheduled = q.scheduled.list("cancellations")
    rows = [(each.id, shown_bytes(each.message.key), rfc3339(each.deliver_at)) for each in scheduled]
    tell.table(["scheduled", "order of", "due"], rows)
    q.scheduled.cancel(ann.id)
    left = [each.id for each in q.scheduled.list("cancellations")]
    tell.check(left == [bob.id], "Ann pays, and hers is called off", left)
    for who, id, expected in (("Ann", ann.id, "cancelled"), ("Bob", bob.id, "delayed")):
        why = q.why(id, "stock")
        tell.check(why.code == expected, f"Why has the stock not got that of {who}? {_sentence(why.answer)}", why)
    return bob


def kill(shop: Shop) -> Killed:
    q, tell, server = shop.q, shop.tell, shop.server
    tell.chapter(
        "kill -9", "While Bob thinks about it, 600 orders come in; in the middle of them, the broker is killed."
    )
    with q.producer("orders", linger="5ms", batch_messages=20) as producer:

        def send(orders: int) -> list[Sending]:
            return [producer.send(value, key=key) for key, value in shop.orders(orders)]

        sent = send(200)
        shop.billing.until_done({each.result().id for each in sent[:50]})
        sent += send(100)
        pid = server.pid
        server.kill()
        killed_us = time.time_ns() // 1_000
        told = sum(each.done() for each in sent)
        tell.say(f"Process {pid} is dead. Of 300 orders it had confirmed {told}; 100 more are sent to nobody.")
        sent += send(100)
        server.start()
        away = shown_span(time.time_ns() // 1_000 - killed_us)
        tell.say(f"After {away}, process {server.pid} takes over the directory. Nobody else is told or restarted.")
        sent += send(200)
    orders = [each.result() for each in sent]
    ids = {each.id for each in orders}
    stored = [each.id for each in q.reader("orders", from_time=min(each.append_time for each in orders))]
    is_once = len(ids) == 600 and sorted(stored) == sorted(ids)
    tell.check(is_once, "All 600 orders are in the log, each of them once", len(ids), len(stored))
    done = shop.all_done(shop.billing, ids)
    again = len(done) - len(ids)
    twice = f"{again} of them twice, for at least once is the promise" if again else "none of them twice"
    who = {each.worker for each in done}
    tell.check(who == {"anna", "ben"}, f"Anna and Ben went on by themselves, and have done all of them, {twice}", who)
    return Killed(killed_us, orders)


def not_paid(shop: Shop, unpaid: Published, killed: Killed) -> None:
    q, tell = shop.q, shop.tell
    before = shown_span(killed.time_us - unpaid.append_time)
    tell.chapter("Bob has not paid", f"His cancellation was published {before} before the kill.")
    shop.all_done(shop.stock, {unpaid.id})
    done = [each.customer for each in shop.stock.done]
    tell.check(done == ["bob"], "The stock has got his cancellation, and nothing else", done)
    delivered_us = next(step.time_us for step in q.trace(unpaid.id).steps if step.what == "DELIVERED")
    late_us = delivered_us - q.message(unpaid.id).deliver_at
    tell.check(late_us >= 0, f"It was not early, but {shown_span(late_us)} after its time", late_us)


def poison(shop: Shop) -> str:
    """The id of the poison message."""
    q, tell, billing = shop.q, shop.tell, shop.billing
    tell.chapter(
        "A poison message", "Eve's order says 12,50 where billing expects 12.50. She orders again, and so does Finn."
    )
    bad = q.publish("orders", shop.order("eve", "12,50"), key="eve").id
    good = q.publish("orders", shop.order("eve"), key="eve").id
    finns = q.publish("orders", shop.order("finn"), key="finn").id
    (letter,) = until(lambda: q.dead_letters.list("orders", group="billing"), bool, "there is a dead letter")
    attempts = [(each.attempt, each.consumer, shown_text(each.reason)) for each in letter.failures]
    tell.table([Column("attempt", is_number=True), "worker", "reason"], attempts)
    is_given_up = letter.original == bad and len(attempts) == letter.attempts == 3
    tell.check(is_given_up, f"After 3 attempts {bad} is a dead letter, with its reasons: {letter.id}", letter)
    why = q.why(good, "billing")
    tell.check(why.code == "parked", f"Why has nobody got Eve's next order? {_sentence(why.answer)}", why)
    billing.until_done({finns})
    shop.all_done(shop.analytics, {bad, good, finns})
    left = until(lambda: shop.to_do("billing"), lambda left: left == 1, "only Eve's next order is left")
    tell.check(left == 1, "Finn's order is done, and analytics has all three: it is in nobody else's way", left)

    tell.say("Billing learns to read commas, and the dead letter is sent back.")
    billing.reads_commas = True
    would = q.dead_letters.redrive("orders", group="billing", reason="no amount", dry_run=True).in_place
    done = q.dead_letters.redrive("orders", group="billing", reason="no amount").in_place
    tell.check(
        would == done == (letter.id,), "It is redriven in its place in the log, as a dry run had said", would, done
    )
    order = [each.id for each in shop.all_done(billing, {bad, good})]
    tell.check(order == [bad, good], "Both of Eve's orders are done, in their order", order)
    letters = q.dead_letters.list("orders")
    tell.check(not letters, "No dead letter is left", letters)
    return bad


def trace(shop: Shop, id: str) -> None:
    tell = shop.tell
    tell.chapter("What happened to it", f"Everything is remembered, of every message. Of {id}:")
    steps = shop.q.trace(id).steps
    rows = [
        (
            f"+{shown_span(step.time_us - steps[0].time_us)}",
            step.what,
            step.group or "-",
            step.consumer or "-",
            step.attempt or "-",
            shown_text(step.reason),
        )
        for step in steps
    ]
    since, attempt = Column("since", is_number=True), Column("try", is_number=True)
    tell.table([since, "what", "group", "worker", attempt, Column("reason", rank=1)], rows)
    billed = [step.what for step in steps if step.group == "billing"]
    is_whole = set(billed) >= _EXPECTED_OF_POISON and billed[-1] == "ACKNOWLEDGED"
    tell.check(is_whole, f"Nothing is missing: {counted(len(billed), 'step')} in billing, up to the happy end", billed)
    tell.say(f"The dashboard has the same: {shop.server.dashboard}#/messages/{id}")


def replay(shop: Shop, killed: Killed) -> None:
    q, tell = shop.q, shop.tell
    tell.chapter("Back in time", "Messages that are done stay in the log: one can ask what was, and have it again.")
    then = q.state_at("billing", "orders", killed.time_us)
    undone = sum(len(each.unacknowledged) for each in then)
    tell.say(f"When the broker was killed, billing had {counted(undone, 'order')} to do.")
    times = [each.append_time for each in killed.orders]
    replayed = q.replay("orders", "fraud-check", from_time=min(times), to_time=max(times) + 1)
    tell.say(f"A new group, fraud-check, is made for the orders of that time: {replayed}.")
    seen: list[str] = []
    with q.consumer("fraud-check", "orders", until_idle="10s") as consumer:
        for batch in consumer.batches():
            rows = batch.arrow().select(["partition", "offset"]).to_pylist()
            seen += [f"orders:{row['partition']}:{row['offset']}" for row in rows]
            batch.ack()
            if len(seen) >= replayed:
                break
    is_same = sorted(seen) == sorted(each.id for each in killed.orders)
    tell.check(is_same, f"It gets the {len(seen)} orders around the kill once more, in Arrow batches", len(seen))
    shop.show_groups()
    to_do = {group.name: shop.to_do(group.name) for group in q.groups()}
    tell.check(not any(to_do.values()), "Nobody else has noticed, and nobody has anything left to do", to_do)


def end(shop: Shop) -> None:
    tell = shop.tell
    tell.chapter("The end of the day")
    rows = [
        (topic.name, len(topic.partitions), sum(each.end_offset - each.start_offset for each in topic.partitions))
        for topic in shop.q.topics()
    ]
    tell.table(["topic", Column("partitions", is_number=True), Column("messages", is_number=True)], rows)
    tell.say(f"The dashboard shows all of it: {shop.server.dashboard}")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "-"


def _latency(shop: Shop, id: str, group: str) -> str:
    latency_us = shop.q.trace(id).latency_us(group)
    return "-" if latency_us is None else shown_span(latency_us)


def _is_in_order(done: Sequence[Done]) -> bool:
    numbers: dict[str, list[int]] = {}
    for each in done:
        numbers.setdefault(each.customer, []).append(each.number)
    return all(of_one == sorted(of_one) for of_one in numbers.values())
