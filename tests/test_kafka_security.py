"""TLS, SASL and ACLs on a real broker: it works, or one line says why not, and no secret is in it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import kafka_deployment as d
import pytest
from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion
from kafka_broker import Cluster

from schemas.errors import NotAllowedError, TransportError
from schemas.types import Partition
from stream.kafka.client import Connection
from stream.kafka.properties import Security, read_properties
from stream.kafka.topics import Topics, create
from stream.kafka.transport import KafkaTransport
from stream.transport import link_inputs

SASL = "org.apache.kafka.common.security"
SECRET = "scram-s3cret"  # a password of this test


@pytest.fixture(scope="module")
def cluster(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:  # noqa: ARG001  (skips)
    """Return a broker that wants TLS, a password and ACLs; user carol has a SCRAM password."""
    with Cluster.start(tmp_path_factory.mktemp("secure"), secure=True) as made:
        admin = KafkaAdminClient(bootstrap_servers=made.servers)
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            admin.alter_user_scram_credentials(
                [
                    UserScramCredentialUpsertion(
                        user="alice", mechanism=mechanism, iterations=4096, password=SECRET
                    )
                ]
            )
        admin.close()
        yield made


def security(cluster: Cluster, folder: Path, mechanism: str, module: str, options: str) -> Security:
    """Return what a properties file for this broker says."""
    assert cluster.secured is not None
    path = folder / "client.properties"
    path.write_text(
        f"security.protocol=SASL_SSL\nssl.truststore.location={cluster.secured.certificate}\n"
        f"sasl.mechanism={mechanism}\nsasl.jaas.config={SASL}.{module} required {options};\n"
    )
    return read_properties(path).security


def refused(cluster: Cluster, said: Security, servers: str = "") -> str:
    """Return the line of what goes wrong; it comes at once, not after all time is up."""
    assert cluster.secured is not None
    began = time.monotonic()
    with pytest.raises(TransportError) as caught:
        Connection(servers or cluster.secured.servers, said, times=d.TIMES).admin()
    assert time.monotonic() - began < 8
    return caught.value.line()


PLAIN = ("PLAIN", "plain.PlainLoginModule", 'username="alice" password="alice-secret"')
SCRAMS = [
    (mechanism, "scram.ScramLoginModule", f'username="alice" password="{SECRET}"')
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
]
OAUTH = ("OAUTHBEARER", "oauthbearer.OAuthBearerLoginModule", 'unsecuredLoginStringClaim_sub="alice"')


@pytest.mark.parametrize("how", [PLAIN, *SCRAMS, OAUTH], ids=lambda how: how[0])
def test_a_whole_session_over_tls_and_sasl(
    cluster: Cluster, tmp_path: Path, how: tuple[str, str, str]
) -> None:
    """Publishing, linking and folding work with each mechanism, and give the same ledger."""
    assert cluster.secured is not None
    connection = Connection(cluster.secured.servers, security(cluster, tmp_path, *how), times=d.TIMES)
    topics = Topics(f"{how[0].lower()}.")
    with connection.admin() as admin:
        create(admin, topics.plan(1))
    with KafkaTransport(connection, topics) as made:
        d.publish(made, d.small_session(1))
        sink = d.work_off(made, [d.linker(made, 0), d.sink_task(made)])[1]
    assert d.said(sink) == d.ledger_in_memory(1)


@pytest.mark.parametrize("how", [PLAIN, *SCRAMS], ids=lambda how: how[0])
def test_a_wrong_password_is_one_line(
    cluster: Cluster, tmp_path: Path, how: tuple[str, str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """It says so at once, and neither the error nor any log has the password."""
    caplog.set_level(logging.DEBUG)
    assert cluster.secured is not None
    said = security(cluster, tmp_path, how[0], how[1], 'username="alice" password="hunter2-wrong"')
    assert refused(cluster, said) == (
        f"{cluster.secured.servers}: broker cannot be used: it refuses user or password; check sasl.jaas.config"
    )
    assert "hunter2" not in caplog.text
    assert "hunter2" not in repr(Connection("host:1", said).settings("x"))


def test_an_untrusted_certificate_is_one_line(cluster: Cluster, tmp_path: Path) -> None:
    """Without the right truststore nothing is sent, the password least of all."""
    said = security(cluster, tmp_path, *PLAIN)._replace(truststore="")
    assert "its certificate is not trusted; check ssl.truststore.location" in refused(cluster, said)


def test_a_certificate_for_another_host_is_one_line(cluster: Cluster, tmp_path: Path) -> None:
    """The host's name is checked, unless that was switched off."""
    assert cluster.secured is not None
    servers = f"localhost:{cluster.secured.port}"
    said = security(cluster, tmp_path, *PLAIN)
    assert "its certificate is for another host" in refused(cluster, said, servers)
    Connection(servers, said._replace(check_hostname=False), times=d.TIMES).admin().close()


@pytest.mark.parametrize("tls", [True, False])
def test_tls_on_one_side_only_is_one_line(cluster: Cluster, tmp_path: Path, *, tls: bool) -> None:
    """TLS to a plain port, or none to a TLS port, ends after the time that was given, with what was seen."""
    assert cluster.secured is not None
    servers = cluster.servers if tls else cluster.secured.servers
    said = security(cluster, tmp_path, *PLAIN) if tls else Security()
    with pytest.raises(TransportError) as caught:
        Connection(servers, said, times=d.TIMES._replace(connect=3)).admin()
    line = caught.value.line()
    assert line.startswith(f"{servers}: no broker answers within 3 s; is one there? (")
    assert ("Handshake failed" in line) == tls


def test_missing_rights_are_one_line(cluster: Cluster, tmp_path: Path) -> None:
    """Somebody who may not is told what it is that he may not do."""
    assert cluster.secured is not None
    said = security(cluster, tmp_path, PLAIN[0], PLAIN[1], 'username="bob" password="bob-secret"')
    connection = Connection(cluster.secured.servers, said, times=d.TIMES)
    topics = Topics("forbidden.")
    with connection.admin() as admin, pytest.raises(TransportError) as caught:
        create(admin, topics.plan(1))
    assert "forbidden." in caught.value.line()
    with pytest.raises(TransportError) as caught:
        KafkaTransport(connection, topics)
    assert "topics are not there" in caught.value.line() or "not allowed" in caught.value.line()
    with connection.producer("x", "forbidden") as producer, pytest.raises(TransportError) as caught:
        producer.fence()
    assert "not allowed: TransactionalIdAuthorizationFailed" in caught.value.line()
    with Connection(cluster.servers, times=d.TIMES).admin() as admin:
        create(admin, topics.plan(1))
    with KafkaTransport(connection._replace(servers=cluster.servers, security=Security()), topics) as made:
        made.connection = connection
        made._admin.close()
        made._admin = connection.admin()
        with pytest.raises(NotAllowedError, match="TransactionalIdAuthorizationFailed"):
            made.claim("link-0", link_inputs(Partition(0), 1))


def test_a_connection_that_breaks_under_a_question_is_no_failure(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only asks is asked again: a broker may close a connection at any time."""
    connection = Connection(kafka, times=d.TIMES)
    with connection.admin() as admin:
        asked = admin._client.describe_topics
        answers = iter([kafka_errors.KafkaConnectionError("socket disconnected")])

        def once_broken(names: Sequence[str]) -> Any:
            for error in answers:
                raise error
            return asked(names)

        monkeypatch.setattr(admin._client, "describe_topics", once_broken)
        assert admin.topics(["no-such-topic"]) == {}
