"""What happened to a message, why a group has not got it, and what a group had not done at some time.

It prints:

    PUBLISHED
    DELIVERED       to anna, attempt 1
    NACKED          by anna: database is down
    REDELIVERED     to ben, attempt 2, after: database is down
    ACKNOWLEDGED    by ben
    RETAINED
    from publishing to acknowledgement: 61 s
    why not order 2? leased: cleo has it, attempt 1, until …
    why not order 3? delayed: it is delayed until …
    why not order 4? no_consumer: the message is ready, and no consumer of the group is there
    a second ago shipping had 3 messages to do, now 2
"""

from penstock.clock import rfc3339
from penstock.testing import VirtualQueue


def main() -> None:
    with VirtualQueue() as q:
        q.create_topic("orders", partitions=1)
        first = q.publish("orders", "order 1")
        settings = {"backoff": {"initial": "1m", "jitter": 0}, "assignment": "shared"}
        anna, ben = (q.consumer("shipping", "orders", name=name, **settings) for name in ("anna", "ben"))
        anna.poll()[0].nack(reason="database is down")
        q.clock.advance("61s")
        ben.poll()[0].ack()

        trace = q.trace(first.id)
        for step in trace.steps:
            match step.what:
                case "DELIVERED":
                    told = f"to {step.consumer}, attempt {step.attempt}"
                case "REDELIVERED":
                    told = f"to {step.consumer}, attempt {step.attempt}, after: {step.reason}"
                case "NACKED":
                    told = f"by {step.consumer}: {step.reason}"
                case "ACKNOWLEDGED":
                    told = f"by {step.consumer}"
                case _:
                    told = ""
            print(f"{step.what:<15} {told}".rstrip())
        latency = trace.latency_us("shipping")
        print(f"from publishing to acknowledgement: {latency // 1_000_000} s")

        anna.close()
        ben.close()
        ids = {2: q.publish("orders", "order 2").id}
        ids[3] = q.publish("orders", "order 3", delay="1d").id
        ids[4] = q.publish("orders", "order 4").id
        with q.consumer("shipping", "orders", name="cleo") as cleo:
            (message,) = cleo.poll(1)
            explain(q, 2, ids)
            explain(q, 3, ids)
            before = rfc3339(q.clock.now_us())
            q.clock.advance("1s")
            message.ack()
        explain(q, 4, ids)
        then = q.state_at("shipping", "orders", before)[0]
        now = q.state_at("shipping", "orders", rfc3339(q.clock.now_us()))[0]
        print(f"a second ago shipping had {len(then.unacknowledged)} messages to do, now {len(now.unacknowledged)}")


def explain(q: VirtualQueue, number: int, ids: dict) -> None:
    why = q.why(ids[number], "shipping")
    answer, _, until = why.answer.partition("until")
    print(f"why not order {number}? {why.code}: {answer}{'until …' if until else ''}")


if __name__ == "__main__":
    main()
