"""Which quota applies to whom, and how a balance goes down and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import InvalidSetting, QuotaExceeded
from penstock.server.access import Pattern
from penstock.server.access_file import read, set_quota
from penstock.server.quotas import NONE, PUBLISH, REQUESTS, Allowance, Meter, Quota, QuotaRule, Quotas, quota_of
from penstock.testing.clock import ManualClock


def rule(name: str, **quotas: int) -> QuotaRule:
    return QuotaRule((Pattern.of(name),), Quota(**quotas))


RULES = [
    rule("shop-eu", requests_per_s=3),
    rule("shop*", requests_per_s=2, connections=20),
    rule("*", requests_per_s=1, connections=10, storage_bytes=5),
]


@pytest.mark.parametrize(
    ("principal", "quota"),
    [
        ("shop-eu", Quota(requests_per_s=3, connections=20, storage_bytes=5)),
        ("shop-us", Quota(requests_per_s=2, connections=20, storage_bytes=5)),
        ("billing", Quota(requests_per_s=1, connections=10, storage_bytes=5)),
    ],
)
def test_each_bound_is_that_of_the_most_specific_name(principal: str, quota: Quota) -> None:
    assert quota_of(RULES, principal) == quota
    assert quota_of(RULES[::-1], principal) == quota
    assert quota_of([], principal) == NONE


def test_the_later_of_two_entries_for_the_same_name_applies() -> None:
    assert quota_of([rule("a", connections=1), rule("a", connections=2)], "a").connections == 2


def test_a_balance_goes_down_by_what_is_used_and_comes_back_with_time() -> None:
    clock = ManualClock()
    meter = Meter("shop", Quota(publish_bytes_per_s=100), clock)
    allowed = Allowance(meter, is_single=False)
    allowed.publish(60)
    allowed.publish(90)
    with pytest.raises(QuotaExceeded) as error:
        allowed.publish(1)
    assert error.value.details == {"principal": "shop", "quota": PUBLISH, "retry_after": 0.5}
    clock.advance_us(499_999)
    with pytest.raises(QuotaExceeded):
        allowed.publish(1)
    # A client that is told to come back at once would only be busy with that.
    assert error.value.retry_after_s >= 0.001
    clock.advance_us(2_000)
    allowed.publish(1)
    # An hour without anything is no reason to publish a lot then: the burst is a second's worth.
    clock.advance("1h")
    allowed.publish(100)
    with pytest.raises(QuotaExceeded):
        allowed.publish(1)
    assert meter.used[PUBLISH] == 251
    assert meter.throttled[PUBLISH] == 3


def test_a_request_that_is_refused_costs_nothing() -> None:
    clock = ManualClock()
    meter = Meter("shop", Quota(publish_bytes_per_s=100, requests_per_s=2), clock)
    allowed = Allowance(meter, is_single=False)
    allowed.publish(200)
    for _ in range(10):
        with pytest.raises(QuotaExceeded):
            allowed.publish(1)
    assert meter.used[REQUESTS] == 1


def test_one_request_is_admitted_as_a_whole_and_pays_for_all_of_it() -> None:
    meter = Meter("shop", Quota(publish_bytes_per_s=100, requests_per_s=1), ManualClock())
    first, second = (Allowance(meter, is_single=True) for _ in range(2))
    for _ in range(5):
        first.publish(100)
    assert (meter.used[PUBLISH], meter.used[REQUESTS]) == (500, 1)
    with pytest.raises(QuotaExceeded):
        second.publish(1)


def test_a_quota_that_is_changed_applies_at_once() -> None:
    clock = ManualClock()
    quotas = Quotas([rule("*", requests_per_s=1_000)], clock)
    meter = quotas.meter("shop")
    quotas.change([rule("*", requests_per_s=1)])
    allowed = Allowance(meter, is_single=False)
    allowed.request()
    with pytest.raises(QuotaExceeded):
        allowed.request()
    quotas.change([])
    allowed.request()
    assert not meter.has_rates
    assert quotas.meters == []


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{quotas: {}}", "quotas must be a list"),
        ("{quotas: [5]}", r"quotas\[0\] has principals, and publish_bytes_per_s"),
        ("{quotas: [{principals: [a], bytes: 5}]}", r"quotas\[0\] has principals"),
        ("{quotas: [{connections: 5}]}", r"quotas\[0\].principals must be a list"),
        ("{quotas: [{principals: [a], connections: 0}]}", r"quotas\[0\].connections is a whole number from 1"),
        ("{quotas: [{principals: [a], connections: true}]}", r"quotas\[0\].connections is a whole number"),
        ("{quotas: [{principals: [a], storage_bytes: 10GB}]}", r"quotas\[0\].storage_bytes is a whole number"),
    ],
)
def test_quotas_that_make_no_sense_are_refused(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "access.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(InvalidSetting, match=told):
        read(tmp_path / "access.yaml")


def test_quotas_are_set_one_by_one_and_the_rest_of_the_file_stays(tmp_path: Path) -> None:
    file = tmp_path / "access.yaml"
    file.write_text("rules: []\nquotas: [{principals: [a, b], connections: 1}]\n", encoding="utf-8")
    set_quota(file, "a", {"requests_per_s": 5})
    set_quota(file, "a", {"storage_bytes": 7})
    assert quota_of(read(file).quotas, "a") == Quota(requests_per_s=5, storage_bytes=7, connections=1)
    assert quota_of(read(file).quotas, "b") == Quota(connections=1)
    set_quota(file, "a", {"requests_per_s": None, "storage_bytes": None})
    assert quota_of(read(file).quotas, "a") == Quota(connections=1)
    assert "rules: []" in file.read_text(encoding="utf-8")
