"""A real Apache Kafka broker, or three of them, on free ports of the loopback interface.

    with Cluster.start(folder) as cluster:        # one node, broker and controller
        cluster.servers                           # "127.0.0.1:40123"
        cluster.nodes[0].kill()                   # SIGKILL; .stop() is SIGTERM, .start() again
    python tests/kafka_broker.py                  # one for a person, until Ctrl-C

The jars come from Maven (`pom.xml` beside this file) and stay in `.cache/kafka/<version>`, as does
a formatted folder of every node number, since formatting takes a JVM of its own and five seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Self

HERE: Final = Path(__file__).resolve().parent
CACHE: Final = HERE.parent / ".cache" / "kafka"
CLUSTER_ID: Final = "Z3B1LWxlZGdlci10ZXN0cw"
START_SECONDS: Final = 90.0
STOP_SECONDS: Final = 20.0

_JAVA: Final = ("-Xms96m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_LOG4J: Final = """\
<Configuration status="ERROR">
  <Appenders><Console name="out"><PatternLayout pattern="%d %p %m (%c)%n"/></Console></Appenders>
  <Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


class BrokerError(RuntimeError):
    """No broker can be had: the message says why, with the end of its log."""


def version() -> str:
    """Return the version of Kafka that the pom names."""
    found = re.search(
        r"<artifactId>kafka_2\.13</artifactId>\s*<version>([^<]+)<", (HERE / "pom.xml").read_text()
    )
    assert found
    return found[1]


def jars() -> Path:
    """Return the folder of jars, fetched if they are not there.

    Raises:
        BrokerError: Maven or Java is missing, or Maven fails.

    """
    folder = CACHE / version() / "jars"
    if folder.is_dir():
        return folder
    for tool in ("mvn", "java"):
        if shutil.which(tool) is None:
            raise BrokerError(f"{tool} is not installed: tests with a real broker need Java 17 and Maven")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / "lock"):
        if folder.is_dir():
            return folder
        beside = folder.with_name("jars.new")
        shutil.rmtree(beside, ignore_errors=True)
        command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
        done = subprocess.run(
            [*command, f"-DoutputDirectory={beside}"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BrokerError(f"Maven cannot fetch Kafka's jars: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        beside.rename(folder)
    return folder


def java(main: str, *arguments: str, log: str = "") -> list[str]:
    """Return the command that runs a class of Kafka's."""
    options = [f"-Dlog4j2.configurationFile={log}"] if log else []
    return ["java", *_JAVA, *options, "-cp", f"{jars()}/*", main, *arguments]


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


class Node:
    """A broker that is also a controller, with its folder. It can be killed and started again."""

    def __init__(self, folder: Path, number: int, properties: Mapping[str, str], port: int) -> None:
        self.folder = folder
        self.number = number
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._properties = folder / "server.properties"
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        self._log4j = folder / "log4j2.xml"
        self._log4j.write_text(_LOG4J)
        if not (folder / "data").exists():
            shutil.copytree(self._formatted(), folder / "data")

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has written."""
        return (self.folder / "broker.log").read_text(errors="replace")

    def start(self, *, wait: bool = True) -> None:
        """Start it; with `wait`, return once it answers.

        Raises:
            BrokerError: it ended, or did not answer in time.

        """
        assert self._process is None, "it is running"
        with (self.folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                java("kafka.Kafka", str(self._properties), log=str(self._log4j)),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C"},
            )
        if wait:
            self.wait()

    def wait(self) -> None:
        """Return once it answers on its port; BrokerError if it ended or takes too long."""
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while not _listens(self._process.pid, self.port):
            if self._process.poll() is not None:
                raise BrokerError(f"broker {self.number} ended:\n{self.log[-3000:]}")
            if time.monotonic() > deadline:
                self.kill()
                raise BrokerError(f"broker {self.number} does not answer:\n{self.log[-3000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """End it as a power cut would (SIGKILL)."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in good order (SIGTERM), or by force if that takes too long."""
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """Stop it where it stands (SIGSTOP): its port stays open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _formatted(self) -> Path:
        """Return a formatted folder of this node number, made if it is not there."""
        folder = CACHE / version() / f"formatted-{self.number}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent / "lock"):
            if folder.is_dir():
                return folder
            with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
                text = self._properties.read_text()
                made = Path(temporary) / "data"
                properties = Path(temporary) / "server.properties"
                properties.write_text(re.sub(r"(?m)^log\.dirs=.*$", f"log.dirs={made}", text))
                arguments = ("format", "-t", CLUSTER_ID, "-c", str(properties))
                command = java("kafka.tools.StorageTool", *arguments, log=str(self._log4j))
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise BrokerError(f"cannot format: {done.stdout[-2000:]}{done.stderr[-2000:]}")
                made.rename(folder)
        return folder


class Secured:
    """A listener for TLS and SASL: alice may do anything, bob nothing; both by PLAIN."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_ports(1)[0]
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate = folder / "server-cert.pem"
        key = folder / "server-key.pem"
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=broker",
        ]
        names = ["-addext", "subjectAltName=IP:127.0.0.1"]
        files = ["-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run([*command, *names, *files], check=True, capture_output=True)
        (folder / "server.pem").write_text(key.read_text() + self.certificate.read_text())

    @property
    def servers(self) -> str:
        """What clients are given as `--bootstrap-server`."""
        return f"127.0.0.1:{self.port}"

    def properties(self) -> dict[str, str]:
        """Return what the broker is told of it."""
        security = "org.apache.kafka.common.security"
        users = 'user_alice="alice-secret" user_bob="bob-secret"'
        prefix = "listener.name.secure"
        return {
            f"{prefix}.ssl.keystore.type": "PEM",
            f"{prefix}.ssl.keystore.location": str(self.folder / "server.pem"),
            f"{prefix}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            f"{prefix}.plain.sasl.jaas.config": f"{security}.plain.PlainLoginModule required {users};",
            f"{prefix}.scram-sha-256.sasl.jaas.config": f"{security}.scram.ScramLoginModule required;",
            f"{prefix}.scram-sha-512.sasl.jaas.config": f"{security}.scram.ScramLoginModule required;",
            f"{prefix}.oauthbearer.sasl.jaas.config": (
                f"{security}.oauthbearer.OAuthBearerLoginModule required "
                'unsecuredLoginStringClaim_sub="broker";'
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:alice",
        }


class Cluster:
    """Brokers that know each other. Leaving the `with` ends them all."""

    def __init__(self, folder: Path, nodes: int = 1, *, secure: bool = False) -> None:
        ports = free_ports(2 * nodes)
        secured = Secured(folder) if secure else None
        self.secured = secured
        self.nodes: list[Node] = []
        voters = ",".join(f"{i + 1}@127.0.0.1:{ports[nodes + i]}" for i in range(nodes))
        for i in range(nodes):
            node_folder = folder / f"node-{i + 1}"
            properties = {
                "process.roles": "broker,controller",
                "node.id": str(i + 1),
                "controller.quorum.voters": voters,
                "controller.listener.names": "CONTROLLER",
                "inter.broker.listener.name": "PLAINTEXT",
                "listeners": f"PLAINTEXT://127.0.0.1:{ports[i]},CONTROLLER://127.0.0.1:{ports[nodes + i]}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "log.dirs": str(node_folder / "data"),
                "auto.create.topics.enable": "false",
                "default.replication.factor": str(nodes),
                "offsets.topic.replication.factor": str(nodes),
                "offsets.topic.num.partitions": "2",
                "transaction.state.log.replication.factor": str(nodes),
                "transaction.state.log.min.isr": str(max(nodes - 1, 1)),
                "transaction.state.log.num.partitions": "4",
                "share.coordinator.state.topic.replication.factor": str(nodes),
                "share.coordinator.state.topic.min.isr": str(max(nodes - 1, 1)),
                "share.coordinator.state.topic.num.partitions": "1",
                # Tests wait for these.
                "group.initial.rebalance.delay.ms": "0",
                "group.min.session.timeout.ms": "1000",
                "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
                "log.retention.check.interval.ms": "1000",
                "log.initial.task.delay.ms": "1000",
                "log.cleaner.backoff.ms": "500",
                "broker.session.timeout.ms": "3000",
                "broker.heartbeat.interval.ms": "500",
                "controller.quorum.election.timeout.ms": "500",
                "controller.quorum.fetch.timeout.ms": "1000",
                **(secured.properties() if secured else {}),
            }
            if secured:
                properties["listeners"] += f",SECURE://127.0.0.1:{secured.port}"
                properties["listener.security.protocol.map"] += ",SECURE:SASL_SSL"
            self.nodes.append(Node(node_folder, i + 1, properties, ports[i]))

    @classmethod
    def start(cls, folder: Path, nodes: int = 1, *, secure: bool = False) -> Self:
        """Return a running cluster; BrokerError if it cannot be had.

        With `secure` it also listens for TLS and SASL, and allows only what ACLs allow.
        """
        cluster = cls(folder, nodes, secure=secure)
        try:
            for node in cluster.nodes:
                node.start(wait=False)
            for node in cluster.nodes:
                node.wait()
        except BaseException:
            cluster.close()
            raise
        return cluster

    @property
    def servers(self) -> str:
        """What clients are given as `--bootstrap-server`."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def close(self) -> None:
        """End all of them, by force: nothing of theirs is to be kept."""
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextlib.contextmanager
def shared_cluster(folder: Path) -> Iterator[str]:
    """Give the servers of one broker to all processes that ask with the same folder.

    The first one starts it, the last one ends it, whoever that is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    started: Cluster | None = None
    with _locked(folder / "lock"):
        users = _users(folder)
        if not users:
            started = Cluster.start(folder / str(time.time_ns()))
            _started.append(started)
            (folder / "broker").write_text(f"{started.nodes[0].pid} {started.servers}")
        pid, servers = (folder / "broker").read_text().split(" ")
        (folder / "users").write_text(" ".join(map(str, [*users, os.getpid()])))
    try:
        yield servers
    finally:
        with _locked(folder / "lock"):
            users = [user for user in _users(folder) if user != os.getpid()]
            (folder / "users").write_text(" ".join(map(str, users)))
            if not users and started is not None:
                started.close()
            elif not users:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


_started: Final[list[Cluster]] = []
"""Kept to the end, since others may still use them."""


def _users(folder: Path) -> list[int]:
    try:
        pids = [int(word) for word in (folder / "users").read_text().split()]
    except FileNotFoundError:
        return []
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def _listens(pid: int, port: int) -> bool:
    """Return whether that very process listens on a port, so that no stranger is mistaken for it."""
    with contextlib.suppress(OSError):
        inodes = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                    return f"socket:[{words[9]}]" in inodes
    return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Run one broker for a person, until it is interrupted."""
    with tempfile.TemporaryDirectory(prefix="gpu-ledger-kafka-") as folder:
        print(f"starting Apache Kafka {version()}", file=sys.stderr, flush=True)  # noqa: T201
        with Cluster.start(Path(folder)) as cluster, contextlib.suppress(KeyboardInterrupt):
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            print(f"--bootstrap-server {cluster.servers}    (Ctrl-C ends it)", flush=True)  # noqa: T201
            signal.pause()


if __name__ == "__main__":
    main()
