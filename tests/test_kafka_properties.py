r"""How a file in the form of Kafka's own tools is understood, and that it keeps its secrets."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import TransportError, UsageError
from stream.kafka.client import Connection
from stream.kafka.oauth import token, unsecured
from stream.kafka.properties import OAuth, Properties, Security, parse_jaas, parse_properties, read_properties

SECRET = 's3cret-Pa;ss="w0rd\\'
QUOTED = SECRET.replace("\\", "\\\\").replace('"', '\\"')


def read(tmp_path: Path, text: str) -> Properties:
    """Return what a file with this text says."""
    path = tmp_path / "client.properties"
    path.write_text(text)
    return read_properties(path)


def jaas(module: str, **options: str) -> str:
    """Return a `sasl.jaas.config` line, escaped as a properties file wants it."""
    quoted = " ".join(f'{k}="{v}"' for k, v in options.items()).replace("\\", "\\\\")
    return f"sasl.jaas.config=org.apache.kafka.common.security.{module} required {quoted};\n"


def test_nothing_said_is_plaintext(tmp_path: Path) -> None:
    """An empty file, or one of comments, changes nothing."""
    assert read(tmp_path, "") == Properties()
    assert read(tmp_path, "# a comment\n  ! another\n\n") == Properties()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=b", {"a": "b"}),
        ("a = b ", {"a": "b "}),
        ("a: b", {"a": "b"}),
        ("a b c", {"a": "b c"}),
        ("a", {"a": ""}),
        ("a=b=c", {"a": "b=c"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=b\\\n   c\\\n\td", {"a": "bcd"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a\\ b\\=c=d", {"a b=c": "d"}),
        ("a=\\u00e4\\t\\x", {"a": "ä\tx"}),
        ("  a=b\r\n  c=d", {"a": "b", "c": "d"}),
        ("a=b\\", {"a": "b"}),
    ],
)
def test_javas_properties_form_is_read(text: str, values: dict[str, str]) -> None:
    """Separators, continued lines, escapes and comments are Java's."""
    assert parse_properties(text) == values


@given(st.text(max_size=200))
def test_no_text_breaks_the_parsers(text: str) -> None:
    """Whatever stands in a file, parsing ends, and a JAAS text that is none is a ValueError."""
    parse_properties(text)
    with contextlib.suppress(ValueError):
        parse_jaas(text)


def test_scram_over_tls(tmp_path: Path) -> None:
    """Mechanism, user and password come out of `sasl.jaas.config`, with everything odd in them."""
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    said = read(
        tmp_path,
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={tmp_path}/ca.pem\n"
        + jaas("scram.ScramLoginModule", username="ledger", password=QUOTED),
    ).security

    assert said == Security(
        protocol="SASL_SSL",
        truststore="-----BEGIN CERTIFICATE-----\n",
        mechanism="SCRAM-SHA-512",
        username="ledger",
        password=SECRET,
    )
    assert repr(said) == "Security(SASL_SSL, SCRAM-SHA-512)"


def test_a_continued_jaas_line_is_read(tmp_path: Path) -> None:
    """The form in Kafka's documentation, over several lines, is understood."""
    said = read(
        tmp_path,
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\\n"
        '    username="alice" \\\n    password="alice-secret";\n',
    ).security
    assert (said.username, said.password) == ("alice", "alice-secret")


def test_host_names_are_checked_unless_told_not_to(tmp_path: Path) -> None:
    """Only an empty `ssl.endpoint.identification.algorithm` switches the check off."""
    assert read(tmp_path, "security.protocol=SSL").security.check_hostname
    text = "security.protocol=SSL\nssl.endpoint.identification.algorithm={}"
    assert read(tmp_path, text.format("HTTPS")).security.check_hostname
    assert not read(tmp_path, text.format("")).security.check_hostname


def test_what_we_decide_is_told_not_obeyed(tmp_path: Path) -> None:
    """Keys of producers and consumers that gpu-ledger sets itself are listed, not an error."""
    said = read(tmp_path, "acks=1\nisolation.level=read_uncommitted\nclient.id=me")
    assert said.ignored == ("acks", "isolation.level")
    assert said.client_id == "me"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("security.protocoll=SSL", "client.properties, security.protocoll: is not understood; did you mean security.protocol?"),
        ("security.protocol=TLS", "client.properties, security.protocol: is none of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("security.protocol=SASL_SSL", "client.properties, sasl.mechanism: is none of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN", "sasl.jaas.config: is missing; PLAIN needs a PlainLoginModule"),
        ("security.protocol=SSL\nssl.truststore.type=JKS\nssl.truststore.location=x", "ssl.truststore.type: JKS cannot be read; convert it to PEM"),
        ("security.protocol=SSL\nssl.truststore.location=/nowhere/ca.pem", "ssl.truststore.location: cannot be read: No such file or directory"),
        ("security.protocol=SSL\nssl.truststore.location=/proc/self/status", "ssl.truststore.location: holds no PEM; convert it to PEM"),
        ("security.protocol=SSL\nssl.keystore.key=x", "ssl.keystore.key: key and certificate chain go together"),
        ("security.protocol=SSL\nssl.endpoint.identification.algorithm=none", "is neither https nor empty"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    """A key or value that decides about security and is not understood stops the program."""
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert message in caught.value.line()


@pytest.mark.parametrize(
    "config",
    [
        f'plain.PlainLoginModule required username="u" password="{QUOTED}"',
        f'plain.PlainLoginModule required username="u" password={SECRET};',
        f'scram.ScramLoginModule required username="u" password="{QUOTED}";',
        f'plain.PlainLoginModule required username="" password="{QUOTED}";',
        f"{SECRET}",
        f'plain.PlainLoginModule required password="{QUOTED}" username;',
    ],
)
def test_errors_keep_secrets(tmp_path: Path, config: str) -> None:
    """No error repeats any part of a password, wherever it stands wrongly."""
    text = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={config}\n"
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert "sasl.jaas.config" in caught.value.line()
    assert "s3cret" not in caught.value.line()
    assert "w0rd" not in caught.value.line()


def test_no_repr_shows_a_secret() -> None:
    """Whatever prints a connection, its settings' secrets are not in it."""
    oauth = OAuth(endpoint="https://issuer/token", client_id="me", client_secret=SECRET)
    security = Security("SASL_SSL", key=SECRET, key_password=SECRET, password=SECRET, oauth=oauth)
    for thing in (oauth, security, Connection("host:9092", security), Properties(security)):
        assert "s3cret" not in repr(thing)


def test_tokens_come_from_a_file_anew_every_time(tmp_path: Path) -> None:
    """A token in a file is renewed by whoever writes it."""
    path = tmp_path / "token"
    text = f"security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.endpoint.url=file://{path}\n"
    oauth = read(tmp_path, text + jaas("oauthbearer.OAuthBearerLoginModule")).security.oauth
    assert oauth is not None
    with pytest.raises(TransportError, match="token cannot be read"):
        token(oauth)
    for value in ("first", "second"):
        path.write_text(f"{value}\n")
        assert token(oauth) == value


def test_client_credentials_and_unsecured_tokens(tmp_path: Path) -> None:
    """An endpoint needs id and secret, and https; a subject alone makes an unsecured token."""
    base = "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
    url = "sasl.oauthbearer.token.endpoint.url"
    module = "oauthbearer.OAuthBearerLoginModule"
    full = jaas(module, clientId="me", clientSecret="x", scope="kafka")
    oauth = read(tmp_path, f"{base}{url}=https://issuer/token\n{full}").security.oauth
    assert oauth == OAuth(endpoint="https://issuer/token", client_id="me", client_secret="x", scope="kafka")
    with pytest.raises(UsageError, match="neither https nor a file"):
        read(tmp_path, f"{base}{url}=http://issuer/token\n{full}")
    with pytest.raises(UsageError, match="no clientSecret"):
        read(tmp_path, f"{base}{url}=https://issuer/token\n{jaas(module, clientId='me')}")
    with pytest.raises(UsageError, match="does not say where tokens come from"):
        read(tmp_path, base + jaas(module))

    subject = read(tmp_path, base + jaas(module, unsecuredLoginStringClaim_sub="alice")).security.oauth
    assert subject is not None
    assert token(subject).count(".") == 2
    assert unsecured("alice", 0) == "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSIsImlhdCI6MCwiZXhwIjozNjAwfQ."


def test_an_endpoint_that_fails_is_one_line() -> None:
    """No token is a clear error that keeps the secret."""
    oauth = OAuth(endpoint="http://127.0.0.1:9/token", client_id="me", client_secret=SECRET)
    with pytest.raises(TransportError) as caught:
        token(oauth)
    assert caught.value.line() == "http://127.0.0.1:9/token: no token: URLError; check sasl.jaas.config"


def test_keys_and_certificates_are_used(tmp_path: Path) -> None:
    """A client certificate with an encrypted key, in one file, goes into TLS; a wrong password does not."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-subj", "/CN=me", "-days", "2"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    made = subprocess.run([*command, "-passout", "pass:right", *files], capture_output=True, check=False)
    assert made.returncode == 0, made.stderr
    store = (tmp_path / "key.pem").read_text() + (tmp_path / "cert.pem").read_text()
    (tmp_path / "store.pem").write_text(store)
    text = (
        f"security.protocol=SSL\nssl.keystore.location={tmp_path}/store.pem\n"
        f"ssl.truststore.location={tmp_path}/cert.pem\nssl.key.password="
    )
    context = Connection("host:1", read(tmp_path, text + "right").security).settings("x")["ssl_context"]
    assert context.check_hostname
    with pytest.raises(TransportError, match="certificates or key cannot be used") as caught:
        Connection("host:1", read(tmp_path, text + "s3cret").security).settings("x")
    assert "s3cret" not in caught.value.line()
