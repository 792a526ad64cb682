"""Certificates that fit and certificates that do not, for the connection of queries and that of replication."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.own_server import own_server
from tests.harness.servers.postgres import Cluster, Database
from tests.harness.servers.requirement import missing

from waltap.errors import WaltapError

ROLE = "certified"


class Authority:
    """Signs certificates with openssl; all are files of ``folder``."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._openssl(
            f"req -new -x509 -days 2 -nodes -subj /CN={name} -out {name}.crt -keyout {name}.key"
        )

    def sign(self, name: str, subject: str, *, alternative: str = "", days: int = 2) -> None:
        """Make NAME.crt and NAME.key for ``subject``; with negative ``days`` it has expired."""
        self._openssl(f"req -new -nodes -subj /CN={subject} -out {name}.csr -keyout {name}.key")
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={alternative or 'DNS:x'}\n")
        self._openssl(
            f"x509 -req -in {name}.csr -CA {self.name}.crt -CAkey {self.name}.key -CAcreateserial"
            f" -days {days} -extfile {name}.ext -out {name}.crt"
        )
        (self.folder / f"{name}.key").chmod(0o600)

    def _openssl(self, words: str) -> None:
        subprocess.run(
            ["openssl", *words.split()], cwd=self.folder, check=True, capture_output=True
        )


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Return a folder with an authority and what it signed, and another authority."""
    if shutil.which("openssl") is None:
        missing("there is no openssl to make certificates")
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder, "authority")
    authority.sign("here", "here", alternative="IP:127.0.0.1")
    authority.sign("elsewhere", "elsewhere", alternative="DNS:elsewhere.example.com")
    authority.sign("expired", "expired", alternative="IP:127.0.0.1", days=-1)
    authority.sign("client", ROLE)
    Authority(folder, "stranger").sign("forged", ROLE)
    return folder


@pytest.fixture(scope="module")
def cluster(files) -> Iterator[Cluster]:
    """Return a server that takes the role by its certificate alone."""
    with own_server() as made:
        if made.execute("SHOW ssl_library") != [("OpenSSL",)]:
            missing("the server speaks no TLS")
        made.execute(f"CREATE ROLE {ROLE} LOGIN SUPERUSER")
        shutil.copy(files / "authority.crt", made.folder / "data/authority.crt")
        rules = f"hostssl all {ROLE} all cert\nhost all all all trust\nlocal all all trust\n"
        (made.folder / "data/pg_hba.conf").write_text(rules)
        made.execute("ALTER SYSTEM SET ssl_ca_file = 'authority.crt'")
        show(made, files, "here")
        yield made


def show(cluster: Cluster, files: Path, name: str) -> None:
    """Have the server show this certificate from now on."""
    data = cluster.folder / "data"
    for source, target in ((f"{name}.crt", "server.crt"), (f"{name}.key", "server.key")):
        shutil.copy(files / source, data / target)
        (data / target).chmod(0o600)
        if cluster.account is not None:
            shutil.chown(data / target, cluster.account)
    if cluster.account is not None:
        shutil.chown(data / "authority.crt", cluster.account)
    cluster.execute("ALTER SYSTEM SET ssl = on")
    cluster.stop()
    cluster.start()


@pytest.fixture(scope="module")
def shop(cluster) -> Iterator[Database]:
    made = cluster.create_database("shop")
    made.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (0, 'a')")
    yield made


def pipeline(shop: Database, files: Path, folder: Path, **more: str) -> PipelineRig:
    settings = {
        "database.user": ROLE, "database.sslmode": "verify-full",
        "database.sslrootcert": str(files / "authority.crt"),
        "database.sslcert": str(files / "client.crt"), "database.sslkey": str(files / "client.key"),
    }  # fmt: skip
    more = {f"database.{name}": value for name, value in more.items()}
    return PipelineRig(shop, folder, {k: v for k, v in (settings | more).items() if v != ""})


def test_both_connections_are_certified_both_ways(shop, files, tmp_path):
    """A burst larger than what TLS and libpq keep in their buffers comes whole, with nothing behind it."""
    made = pipeline(shop, files, tmp_path)
    with made.running() as run:
        seen = shop.execute(
            "SELECT a.backend_type, bool_and(s.ssl AND s.client_dn = %s) FROM pg_stat_ssl s"
            " JOIN pg_stat_activity a USING (pid) WHERE a.usename = %s GROUP BY 1 ORDER BY 1",
            f"/CN={ROLE}", ROLE,
        )  # fmt: skip
        assert seen == [("client backend", True), ("walsender", True)]
        shop.execute("INSERT INTO t SELECT g, repeat('x', 5000) FROM generate_series(1, 1000) g")
        run.until(lambda: made.destination.ids("t") == list(range(1001)), "the burst")


REFUSED = {
    "another name": ("elsewhere", {}, "The server's certificate is of another name"),
    "expired": ("expired", {}, "and must not have expired"),
    "an unknown authority": (
        "here", {"sslrootcert": "stranger.crt"}, "signed by the authority that database.sslrootcert names",
    ),
    "no file of an authority": (
        "here", {"sslrootcert": "no.crt"}, "database.sslrootcert must name the file",
    ),
    "no certificate of ours": ("here", {"sslcert": "", "sslkey": ""}, "The server asks for a certificate"),
    "a certificate of ours that is forged": (
        "here", {"sslcert": "forged.crt", "sslkey": "forged.key"}, "The server does not take the certificate",
    ),
    "a key of another": ("here", {"sslkey": "here.key"}, "must belong together"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_with_certificates_is_reported(cluster, shop, files, tmp_path, case):
    shown, more, way = REFUSED[case]
    show(cluster, files, shown)
    given = {name: value and str(files / value) for name, value in more.items()}
    with pytest.raises(WaltapError) as caught:
        pipeline(shop, files, tmp_path, **given).run()
    assert caught.value.code == "WT-2028", str(caught.value)
    assert way in caught.value.advice()


def test_verify_ca_takes_a_certificate_of_another_name(cluster, shop, files, tmp_path):
    show(cluster, files, "elsewhere")
    made = pipeline(shop, files, tmp_path, sslmode="verify-ca")
    made.settings |= {"slot.name": "by_authority", "publication.name": "by_authority"}
    with made.running():
        assert made.destination.ids("t")[:1] == [0]
