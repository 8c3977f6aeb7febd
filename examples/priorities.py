"""Priority lanes and messages that expire.

It prints:

    strict: high 1, high 2, normal 1, normal 2, low 1, low 2
    weighted, of ten: 6 high, 3 normal, 1 low
    after an hour only what has not expired: still good
    why not the other: it had expired when its turn came
"""

from collections import Counter

from penstock.testing import VirtualQueue


def main() -> None:
    with VirtualQueue() as q:
        q.create_topic("jobs", partitions=1)
        for number in (1, 2):
            for lane in ("low", "normal", "high"):
                q.publish("jobs", f"{lane} {number}", priority=lane)
        print("strict:", ", ".join(message.value.decode() for message in q.consumer("strict", "jobs").poll()))

        q.create_topic("many", partitions=1)
        for _ in range(20):
            for lane in ("low", "normal", "high"):
                q.publish("many", lane, priority=lane)
        got = Counter(message.value.decode() for message in q.consumer("fair", "many", lanes="weighted").poll(10))
        print(f"weighted, of ten: {got['high']} high, {got['normal']} normal, {got['low']} low")

        q.create_topic("offers", partitions=1)
        short = q.publish("offers", "only today", ttl="30m")
        q.publish("offers", "still good", ttl="2h")
        q.clock.advance("1h")
        left = q.consumer("shop", "offers").poll()
        print("after an hour only what has not expired:", ", ".join(message.value.decode() for message in left))
        print("why not the other:", q.why(short.id, "shop").answer.split(", at")[0])


if __name__ == "__main__":
    main()
