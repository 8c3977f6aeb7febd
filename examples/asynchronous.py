"""The same with an event loop: `penstock.aio` has the names of the blocking client, with `await`.

It prints:

    100 published at once
    100 handled by 8 tasks
"""

import asyncio
import tempfile

import penstock


async def main(path: str) -> None:
    async with penstock.aio.open(path) as q:
        await q.create_topic("pages", partitions=2)
        stored = await asyncio.gather(*[q.publish("pages", f"page {number}") for number in range(100)])
        print(f"{len(stored)} published at once")

        async def handle(message: penstock.aio.Received) -> None:
            await asyncio.sleep(0)

        handled = await q.consumer("crawlers", "pages", until_idle="300ms").run(handle, concurrency=8)
        print(f"{handled.done} handled by 8 tasks")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))
