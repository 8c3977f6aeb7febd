"""A real etcd that speaks TLS, and one that wants to know who asks."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from etcd_support import changes, etcd_process, needs_etcd, opened, post, run
from penstock.cluster.etcd.process import EtcdProcess
from penstock.cluster.etcd.store import ABSENT, Put, Won
from penstock.errors import EtcdRefused, EtcdUnavailable, InvalidSetting

pytestmark = needs_etcd


class Files(NamedTuple):
    ca: str
    cert: str
    authority: trustme.CA


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    path = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    (path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    (path / "us.pem").write_bytes(authority.issue_cert("penstock").private_key_and_cert_chain_pem.bytes())
    return Files(str(path / "ca.pem"), str(path / "us.pem"), authority)


@pytest.fixture(scope="module")
def secured(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """Both sides show a certificate."""
    path = tmp_path_factory.mktemp("secured")
    issued = files.authority.issue_cert("127.0.0.1", "localhost")
    (path / "server.key").write_bytes(issued.private_key_pem.bytes())
    (path / "server.pem").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.cert)
    arguments = [f"--cert-file={path / 'server.pem'}", f"--key-file={path / 'server.key'}"]
    arguments += [f"--trusted-ca-file={files.ca}", "--client-cert-auth"]
    with etcd_process(path / "etcd", *arguments, tls=context) as process:
        yield process


def test_everything_works_over_tls_with_certificates_on_both_sides(secured: EtcdProcess, files: Files) -> None:
    async def work() -> None:
        async with opened(secured.address, ca=files.ca, cert=files.cert) as store:
            answer = await store.commit({"/a": ABSENT}, [Put("/a", bytes(200_000))])
            assert isinstance(answer, Won)
            assert len((await store.get("/a")).items["/a"].value) == 200_000
            assert len(await changes(store, "/a", answer.revision, 1)) == 1
            session = await store.session(10)
            await session.close()

    run(work)


def test_a_certificate_that_is_missing_or_not_trusted_is_told_as_such(
    secured: EtcdProcess, files: Files, tmp_path: Path
) -> None:
    (tmp_path / "other.pem").write_bytes(trustme.CA().cert_pem.bytes())

    async def work() -> None:
        async with opened(secured.address, ca=str(tmp_path / "other.pem"), cert=files.cert) as store:
            with pytest.raises(EtcdUnavailable, match="its certificate is not trusted"):
                await store.get("/a")
        async with opened(secured.address, ca=files.ca) as store:
            with pytest.raises(EtcdUnavailable, match=r"TLS can.t be agreed on .*CERTIFICATE"):
                await store.commit({}, [Put("/a", b"1")])
        async with opened(secured.address.replace("https", "http")) as store:
            with pytest.raises(EtcdUnavailable, match="it does not tell its status"):
                await store.get("/a")

    run(work)


def test_certificates_that_can_not_be_read_are_refused(files: Files, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("", encoding="utf-8")

    async def work() -> None:
        for options in (
            {"ca": str(tmp_path / "nowhere.pem")},
            {"ca": str(tmp_path / "empty.pem")},
            {"cert": str(tmp_path / "empty.pem")},
        ):
            with pytest.raises(InvalidSetting, match=r"the certificates for etcd \(.*\.pem\) can't be used"):
                async with opened("https://127.0.0.1:1", **options):
                    pass

    run(work)


def with_users(process: EtcdProcess) -> str:
    """root may do all, reader may read below /a. Returns a token of root."""
    for path, request in (
        ("user/add", {"name": "root", "password": "secret"}),
        ("role/add", {"name": "root"}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("user/add", {"name": "reader", "password": "secret"}),
        ("role/add", {"name": "reads"}),
        ("role/grant", {"name": "reads", "perm": {"permType": "READ", "key": b"/a", "range_end": b"/b"}}),
        ("user/grant", {"user": "reader", "role": "reads"}),
        ("enable", {}),
    ):
        answer = post(process, f"/v3/auth/{path}", request)
        assert "error" not in answer, answer
    return str(post(process, "/v3/auth/authenticate", {"name": "root", "password": "secret"})["token"])


ROOT = {"user": "root", "password": "secret"}


def test_who_may_not_do_something_hears_why(tmp_path: Path) -> None:
    async def work() -> None:
        with etcd_process(tmp_path, "--bcrypt-cost=4") as process:
            async with opened(process.address, user="somebody", password="any") as early:
                # As long as etcd asks nobody, nobody is refused.
                assert (await early.get("/a")).items == {}
                with_users(process)
                with pytest.raises(EtcdRefused, match="authentication failed, invalid user ID or password"):
                    await early.get("/a")
            async with opened(process.address) as store:
                with pytest.raises(EtcdRefused, match="asks for a user and a password, and none are set"):
                    await store.get("/a")
                with pytest.raises(EtcdRefused, match="asks for a user and a password"):
                    await store.commit({}, [Put("/a", b"1")])
                with pytest.raises(
                    EtcdRefused, match=r"refuses the watch: .*(permission denied|user name is empty)|asks for a user"
                ):
                    await changes(store, "/a", 1, 1)
            async with opened(process.address, user="root", password="wrong") as store:
                with pytest.raises(EtcdRefused, match="authentication failed, invalid user ID or password"):
                    await store.get("/a")
            async with opened(process.address, user="reader", password="secret") as store:
                assert (await store.get("/a")).items == {}
                with pytest.raises(EtcdRefused, match="permission denied"):
                    await store.get("/other")
                with pytest.raises(EtcdRefused, match="permission denied"):
                    await store.commit({}, [Put("/a", b"1")])
                with pytest.raises(EtcdRefused, match="permission denied"):
                    await changes(store, "/other", 1, 1)
            async with opened(process.address, **ROOT) as store:
                assert (await store.get("/a")).items == {}
                answer = await store.commit({}, [Put("/a", b"1")])
                # Its tokens are only in etcd's memory, so after a restart it knows none of them.
                process.kill()
                process.start()
                assert (await store.get("/a")).items["/a"].revision == answer.revision
                process.kill()
                process.start()
                assert isinstance(await store.commit({"/a": answer.revision}, [Put("/a", b"2")]), Won)
                process.kill()
                process.start()
                assert len(await changes(store, "/a", answer.revision, 2)) == 2

    run(work)


def test_a_token_that_has_run_out_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "jwt.key").write_bytes(private)
    (tmp_path / "jwt.pem").write_bytes(public)
    tokens = f"jwt,pub-key={tmp_path / 'jwt.pem'},priv-key={tmp_path / 'jwt.key'},sign-method=RS256,ttl=1s"

    async def work() -> None:
        with etcd_process(tmp_path / "etcd", "--bcrypt-cost=4", f"--auth-token={tokens}") as process:
            with_users(process)

            def token_runs_out() -> None:
                """One that is younger than those of the store."""
                token = post(process, "/v3/auth/authenticate", {"name": "root", "password": "secret"})["token"]
                while "code" not in post(process, "/v3/kv/range", {"key": b"/a"}, token=token):
                    pass

            async with opened(process.address, **ROOT) as store:
                answer = await store.commit({"/a": ABSENT}, [Put("/a", b"1")])
                token_runs_out()
                assert isinstance(await store.commit({"/a": answer.revision}, [Put("/a", b"2")]), Won)
                async with aclosing(store.watch("/a", answer.revision)) as watch:
                    assert (await anext(watch)).changes
                    token_runs_out()
                    assert len((await store.get("/a")).items) == 1
                    # A watch that was begun lives on.
                    await store.commit({}, [Put("/a", b"3")])
                    assert (await anext(watch)).changes
                token_runs_out()
                assert len(await changes(store, "/a", answer.revision, 2)) >= 2

    run(work)
