"""A test with the pytest plugin: seven days pass in milliseconds. Run it with `pytest examples/test_reminders.py`."""

from penstock.testing import VirtualClock, VirtualQueue


def test_a_reminder_comes_after_a_week_and_not_before(
    penstock_queue: VirtualQueue, penstock_clock: VirtualClock
) -> None:
    penstock_queue.create_topic("reminders")
    penstock_queue.publish("reminders", b"renew your passport", delay="7d")
    mailer = penstock_queue.consumer("mailer", "reminders")

    penstock_clock.advance("6d23h")
    assert mailer.poll() == []
    penstock_queue.restart()

    penstock_clock.advance("1h")
    (message,) = penstock_queue.consumer("mailer", "reminders").poll()
    assert message.value == b"renew your passport"
    message.ack()
