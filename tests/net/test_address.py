"""Addresses as people write them, and what is told of those that are none."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidInput
from penstock.net.address import PORT, place_of


@pytest.mark.parametrize(
    ("address", "host", "port", "has_tls"),
    [
        ("penstock://broker:7000", "broker", 7000, False),
        ("penstock://broker/", "broker", PORT, False),
        ("broker", "broker", PORT, False),
        ("broker:7000", "broker", 7000, False),
        ("penstocks://[::1]:7000", "::1", 7000, True),
    ],
)
def test_an_address_is_a_host_and_maybe_a_port(address: str, host: str, port: int, has_tls: bool) -> None:
    place = place_of(address)
    assert (place.host, place.port, place.tls is not None) == (host, port, has_tls)


@pytest.mark.parametrize(
    "address", ["", 5, None, "http://broker", "penstock://", "penstock://broker/topic", "broker:many", "broker#part"]
)
def test_what_is_no_address_is_refused(address: object) -> None:
    with pytest.raises(InvalidInput, match="address"):
        place_of(address)


@pytest.mark.parametrize(
    "address",
    [
        "penstock://SECRET@broker",
        "penstock://:SECRET@broker",
        "penstock://:SECRET@broker/x",
        "penstock://me:SEC/RET@broker",
        "http://:SECRET@broker",
        "penstock://:SECRET@broker:port",
        "penstock://SECRET@[broker",
        ":SECRET@broker/x",
        b"penstock://:SECRET@broker",
        "penstock://broker?key=SECRET",
        "penstock://broker:port?key=SECRET",
        "penstock://broker#SECRET",
    ],
)
def test_a_key_in_an_address_is_refused_and_not_told_to_anybody(address: object) -> None:
    with pytest.raises(InvalidInput) as raised:
        place_of(address)
    assert "SEC" not in str(raised.value)
    assert raised.value.__cause__ is None or "SEC" not in str(raised.value.__cause__)
