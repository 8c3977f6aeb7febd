"""Groups and acknowledgements: each message is answered for on its own, and groups do not notice one another.

It prints:

    billing gets: parcel 0, parcel 1, parcel 2, parcel 3
    parcel 2 is slow, the others are acknowledged: lag of billing is 1
    analytics gets all 4 from the start
    parcel 1 comes again: attempt 2
    acknowledged twice: answered already, or taken back by the broker: parcels:0:1. Answer each delivery once
    lag now: billing 1, analytics 0
    acknowledged messages stay in the log: 4
"""

import tempfile

import penstock


def main(path: str) -> None:
    with penstock.open(path) as q:
        q.create_topic("parcels", partitions=1)
        for number in range(4):
            q.publish("parcels", f"parcel {number}")

        # A slow message blocks nobody: the others are acknowledged around it.
        billing = q.consumer("billing", "parcels", visibility="5m")
        held = billing.poll()
        print("billing gets:", ", ".join(message.value.decode() for message in held))
        for message in held:
            if message.value != b"parcel 2":
                message.ack()
        print(f"parcel 2 is slow, the others are acknowledged: lag of billing is {q.lag('billing')['parcels'][0]}")

        analytics = q.consumer("analytics", "parcels", backoff={"initial": "0s"})
        messages = analytics.poll()
        print(f"analytics gets all {len(messages)} from the start")
        for message in messages:
            if message.value == b"parcel 1":
                message.nack(reason="try me again")
            else:
                message.ack()
        (again,) = analytics.poll(wait="5s")
        print(f"{again.value.decode()} comes again: attempt {again.attempt}")
        again.ack()
        try:
            again.ack()
        except penstock.PenstockError as error:
            print(f"acknowledged twice: {error}")
        print(f"lag now: billing {q.lag('billing')['parcels'][0]}, analytics {q.lag('analytics')['parcels'][0]}")
        print(f"acknowledged messages stay in the log: {len(list(q.reader('parcels')))}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(directory)
