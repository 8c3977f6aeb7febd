"""Topics, partitions and keys: the same key goes to the same partition, in order.

It prints:

    orders: 6 partitions
    user-1 always goes to one partition: True, in order: True
    without a key, messages are spread over 6 partitions
    by hand: orders:5:…
    grown to 8 partitions
    a topic that is not there: topic "order" does not exist. Create it: penstock topic create order
"""

import tempfile

import penstock


def main(path: str) -> None:
    with penstock.open(path) as q:
        topic = q.create_topic("orders", partitions=6)
        print(f"orders: {len(topic.partitions)} partitions")

        stored = [q.publish("orders", f"order {number}", key="user-1") for number in range(20)]
        offsets = [one.offset for one in stored]
        one_partition = len({one.partition for one in stored}) == 1
        print(f"user-1 always goes to one partition: {one_partition}, in order: {offsets == sorted(offsets)}")

        spread = {q.publish("orders", f"order {number}").partition for number in range(20)}
        print(f"without a key, messages are spread over {len(spread)} partitions")

        by_hand = q.publish("orders", "by hand", partition=5)
        print(f"by hand: {by_hand.id.rsplit(':', 1)[0]}:…")

        print(f"grown to {len(q.change_topic('orders', partitions=8).partitions)} partitions")
        try:
            q.publish("order", "a typing error")
        except penstock.PenstockError as error:
            print(f"a topic that is not there: {error}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(directory)
