"""TLS: nobody listens in, and a new certificate is taken up without a restart."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from penstock.clock import SystemClock
from penstock.errors import ConnectionLost, InvalidSetting
from penstock.net.address import place_of
from penstock.net.connection import Connection
from penstock.server.gate import Gate
from penstock.server.native import NativeDoor
from penstock.server.tls import Tls
from served import Served, serve


def written(authority: trustme.CA, path: Path) -> Path:
    file = path / "server.pem"
    issued = authority.issue_cert("127.0.0.1")
    file.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    return file


def trusting(*authorities: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for authority in authorities:
        authority.configure_trust(context)
    return context


def test_a_certificate_is_used_and_replaced_while_it_runs(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    tls = Tls(str(written(old, tmp_path)), None)

    async def work(here: Served) -> None:
        door = NativeDoor(here.site, Gate(here.site, None))
        port = await door.open("127.0.0.1", 0, tls.context)
        place = place_of(f"penstocks://127.0.0.1:{port}", tls=trusting(old))
        connection = await Connection.to(place, SystemClock())
        with pytest.raises(ConnectionLost, match=r"certificate is not trusted \(.*; .* SSL_CERT_FILE"):
            await Connection.to(place._replace(tls=trusting(new)), SystemClock())
        with pytest.raises(ConnectionLost, match=f"if it speaks TLS, its address is penstocks://127.0.0.1:{port}"):
            await Connection.to(place._replace(tls=None), SystemClock())
        written(new, tmp_path)
        tls.refresh()
        other = await Connection.to(place._replace(tls=trusting(new)), SystemClock())
        (tmp_path / "server.pem").write_text("nonsense", encoding="utf-8")
        tls.refresh()
        third = await Connection.to(place._replace(tls=trusting(new)), SystemClock())
        # Who is connected stays so.
        for each in (connection, other, third):
            assert each.is_open
            await each.close()
        await door.close()

    serve(tmp_path / "data", work)


def test_who_wants_tls_of_a_broker_without_it_is_told_so(tmp_path: Path) -> None:
    async def work(here: Served) -> None:
        place = here.place._replace(tls=trusting())
        with pytest.raises(ConnectionLost, match=f"does not seem to speak TLS; without, its address is {here.place} "):
            await Connection.to(place, SystemClock())

    serve(tmp_path / "data", work)


def test_a_certificate_for_another_name_is_not_called_unknown(tmp_path: Path) -> None:
    authority = trustme.CA()
    (tmp_path / "server.pem").write_bytes(authority.issue_cert("elsewhere").private_key_and_cert_chain_pem.bytes())

    async def work(here: Served) -> None:
        door = NativeDoor(here.site, Gate(here.site, None))
        port = await door.open("127.0.0.1", 0, Tls(str(tmp_path / "server.pem"), None).context)
        with pytest.raises(ConnectionLost, match=r"not valid for '127\.0\.0\.1'\.?\)$"):
            await Connection.to(place_of(f"penstocks://127.0.0.1:{port}", tls=trusting(authority)), SystemClock())
        await door.close()

    serve(tmp_path / "data", work)


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    authority = trustme.CA()
    (tmp_path / "certificate.pem").write_bytes(authority.issue_cert("127.0.0.1").cert_chain_pems[0].bytes())
    with pytest.raises(InvalidSetting, match=r"certificate\.pem has no key: name its file \(tls_key\)"):
        Tls(str(tmp_path / "certificate.pem"), None)


def test_a_certificate_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "server.pem").write_text("nonsense", encoding="utf-8")
    for file in ("server.pem", "nowhere.pem"):
        with pytest.raises(InvalidSetting, match="can't be used"):
            Tls(str(tmp_path / file), None)
