"""Order by key: one key at a time, and a poison message holds up its own key only.

It prints:

    anna gets a1; ben gets b1 b2 c1 while a is busy
    a1 is rejected: key 'a' is parked, because of 'broken'
    nothing for anybody: 0
    released, a goes on: a2 a3
    in strict order: 1 then 2 then 3
"""

import tempfile

import penstock


def words(messages: list) -> str:
    return " ".join(message.value.decode() for message in messages)


def main(path: str) -> None:
    with penstock.open(path) as q:
        q.create_topic("events", partitions=1)
        for word in ("a1", "b1", "a2", "b2", "a3", "c1"):
            q.publish("events", word, key=word[0])

        settings = {"ordering": "key", "assignment": "shared"}
        anna, ben = (q.consumer("by-key", "events", name=name, **settings) for name in ("anna", "ben"))
        first = anna.poll(1)
        others = ben.poll(10)
        print(f"anna gets {words(first)}; ben gets {words(others)} while a is busy")
        for message in others:
            message.ack()
        first[0].reject("broken")
        (parked,) = q.parked_keys("by-key")
        print(f"{words(first)} is rejected: key {parked.key.decode()!r} is parked, because of {parked.reason!r}")
        print(f"nothing for anybody: {len(ben.poll(10))}")
        q.release_key("by-key", "events", "a")
        print(f"released, a goes on: {words(ben.poll(10))}")

        q.create_topic("steps", partitions=1)
        for number in (1, 2, 3):
            q.publish("steps", str(number))
        strict = q.consumer("strict", "steps", ordering="partition", prefetch=1, until_idle="300ms")
        got = []
        for message in strict:
            got.append(message.value.decode())
            message.ack()
        print("in strict order:", " then ".join(got))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(directory)
