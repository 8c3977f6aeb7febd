"""The plugin, in a run of pytest as its users have it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Without what happens to be installed: the plugin is named."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\nfilterwarnings = ["error"]\n')
    return pytester


def test_the_package_announces_the_plugin_to_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"penstock": "penstock.testing.plugin"}


def test_users_get_a_queue_and_a_clock(run: pytest.Pytester) -> None:
    run.makepyfile(
        """
        def test_a_reminder_comes_after_a_week(penstock_queue, penstock_clock):
            penstock_queue.create_topic("reminders")
            penstock_queue.publish("reminders", b"renew", delay="7d")
            consumer = penstock_queue.consumer("mailer", "reminders")
            assert consumer.poll(wait="5s") == []
            penstock_clock.advance("7d")
            assert [message.value for message in consumer.poll()] == [b"renew"]

        def test_the_next_test_has_a_queue_of_its_own(penstock_queue):
            assert penstock_queue.topics() == []

        def test_a_restart(penstock_queue, penstock_clock):
            penstock_queue.create_topic("orders", partitions=1)
            penstock_queue.publish("orders", "a")
            penstock_queue.restart()
            for message in penstock_queue.consumer("w", "orders", until_idle="1s"):
                message.ack()
            assert penstock_queue.lag("w") == {"orders": [0]}
            assert penstock_queue.clock is penstock_clock

        def test_the_clock_alone(penstock_clock):
            before = penstock_clock.now_us()
            penstock_clock.advance("1m")
            assert penstock_clock.now_us() == before + 60_000_000
        """
    )
    result = run.runpytest_subprocess("-p", "penstock.testing.plugin", "-q")
    result.assert_outcomes(passed=4)
    assert result.errlines == []


def test_the_fixtures_are_described(run: pytest.Pytester) -> None:
    result = run.runpytest_subprocess("-p", "penstock.testing.plugin", "--fixtures")
    result.stdout.fnmatch_lines(["*penstock_clock*", "*penstock_queue*"])


def test_loading_the_plugin_costs_nobody_anything() -> None:
    """It is loaded in every run of pytest, also of those who have no use for it."""
    program = """
import sys
import penstock.testing.plugin
heavy = {"numpy", "pyarrow", "pyroaring", "penstock.broker", "penstock.client", "penstock.storage"}
print(sorted(heavy & set(sys.modules)))
"""
    command = [sys.executable, "-W", "error", "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_importing_the_package_is_cheap_and_the_rest_comes_when_asked_for() -> None:
    program = """
import sys
import penstock
assert not {"numpy", "pyarrow", "asyncio", "penstock.client", "penstock.aio"} & set(sys.modules)
penstock.aio.open
import penstock.testing
penstock.testing.VirtualQueue
for module in (penstock, penstock.testing):
    for name in module.__all__:
        getattr(module, name)
    try:
        module.nothing
    except AttributeError as error:
        print(error)
"""
    command = [sys.executable, "-W", "error", "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines() == [
        "module 'penstock' has no attribute 'nothing'",
        "module 'penstock.testing' has no attribute 'nothing'",
    ]
