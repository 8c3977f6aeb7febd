from __future__ import annotations

import pytest

from penstock.cluster.etcd.settings import Endpoint, EtcdSettings, endpoints_of
from penstock.errors import InvalidSetting


def test_addresses_are_a_list_or_separated_by_commas() -> None:
    expected = (Endpoint("a", 2379, False), Endpoint("b.example", 12379, True), Endpoint("::1", 2379, False))
    assert endpoints_of("http://a:2379, https://b.example:12379/,http://[::1]") == expected
    assert endpoints_of(["http://a", "https://b.example:12379", "http://[::1]:2379", "http://a:2379"]) == expected
    assert [str(endpoint) for endpoint in expected] == [
        "http://a:2379",
        "https://b.example:12379",
        "http://[::1]:2379",
    ]


@pytest.mark.parametrize(
    "address", ["", "a:2379", "http://", "ftp://a:2379", "http://a:port", "http://a:99999", "http://a/v3", "http://a?b"]
)
def test_what_is_no_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(InvalidSetting, match=r"is no address of etcd.*it looks like http://host:2379"):
        endpoints_of(address)


def test_there_are_one_to_sixteen_addresses() -> None:
    for addresses in ([], ["http://a"] * 17):
        with pytest.raises(InvalidSetting, match="1 to 16 addresses of etcd"):
            endpoints_of(addresses)


def test_a_password_is_no_part_of_an_address_and_is_not_shown() -> None:
    with pytest.raises(InvalidSetting, match="settings of their own") as caught:
        endpoints_of("http://root:secret@a:2379")
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(EtcdSettings(endpoints_of("http://a"), user="root", password="secret"))


def test_settings_that_do_not_go_together_are_refused() -> None:
    plain, secured = endpoints_of("http://a"), endpoints_of("https://a")
    with pytest.raises(InvalidSetting, match="user and password are given together"):
        EtcdSettings(plain, user="root")
    with pytest.raises(InvalidSetting, match="without its certificate"):
        EtcdSettings(secured, key="key.pem")
    with pytest.raises(InvalidSetting, match="its address is http://; say https://"):
        EtcdSettings(plain, ca="ca.pem")
    with pytest.raises(InvalidSetting, match="connect_s is positive"):
        EtcdSettings(plain, connect_s=0)
    with pytest.raises(InvalidSetting, match="response_bytes_max is positive"):
        EtcdSettings(plain, response_bytes_max=-1)
