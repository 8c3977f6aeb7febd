"""Reading and replaying by time: acknowledged messages stay in the log.

It prints:

    the second hour, read: 3, 4, 5
    the same as Arrow: 3 rows, columns partition, offset, append_time, key, value, …
    replayed into a group of its own: 3 messages: 3, 4, 5
    the live group did not notice: 6
    moved back to the second hour, the live group gets: 3, 4, 5, 6
"""

from penstock.clock import rfc3339
from penstock.testing import VirtualQueue


def words(messages: list) -> str:
    return ", ".join(message.value.decode() for message in messages)


def main() -> None:
    with VirtualQueue() as q:
        q.create_topic("readings", partitions=1)
        live = q.consumer("live", "readings")
        hours = []
        for number in range(6):
            if number % 3 == 0:
                hours.append(rfc3339(q.clock.now_us()))
            q.publish("readings", str(number))
            q.clock.advance("20m")
        hours.append(rfc3339(q.clock.now_us()))
        for message in live.poll():
            message.ack()

        print("the second hour, read:", words(list(q.reader("readings", from_time=hours[1], to_time=hours[2]))))
        batches = list(q.reader("readings", from_time=hours[1], to_time=hours[2]).batches())
        rows, names = sum(batch.num_rows for batch in batches), batches[0].schema.names
        print(f"the same as Arrow: {rows} rows, columns {', '.join(names[:5])}, …")

        count = q.replay("readings", "shadow", from_time=hours[1], to_time=hours[2])
        print(f"replayed into a group of its own: {count} messages: {words(q.consumer('shadow', 'readings').poll())}")
        q.publish("readings", "6")
        got = live.poll()
        print("the live group did not notice:", words(got))
        q.seek("live", "readings", hours[1])
        print("moved back to the second hour, the live group gets:", words(live.poll()))


if __name__ == "__main__":
    main()
