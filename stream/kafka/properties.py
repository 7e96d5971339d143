r"""Reads `--command-config`: how to reach brokers, in the properties form that Kafka's own tools use.

    security.protocol=SASL_SSL
    ssl.truststore.location=/etc/kafka/ca.pem
    sasl.mechanism=SCRAM-SHA-512
    sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
        username="ledger" password="...";

    security = read_properties(path).security      # goes into stream.kafka.client.Connection

Understood: PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL; certificates and keys in PEM, from files or
inline; PLAIN, SCRAM-SHA-256 and -512, OAUTHBEARER with a token from a file, from an endpoint
(client credentials), or unsecured. Whatever decides about security and is not understood is an
error: going on without it would be worse. Secrets are never in what errors or `repr` say.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Final, NamedTuple

from schemas.errors import UsageError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

_TAKEN: Final = (
    "security.protocol",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "sasl.mechanism",
    "sasl.jaas.config",
    "sasl.oauthbearer.token.endpoint.url",
    "client.id",
)
_OURS: Final = (
    "bootstrap.servers",
    "acks",
    "enable.idempotence",
    "transactional.id",
    "transaction.timeout.ms",
    "isolation.level",
    "auto.offset.reset",
    "enable.auto.commit",
    "group.id",
    "compression.type",
    "max.poll.records",
    "allow.auto.create.topics",
    "key.serializer",
    "value.serializer",
    "key.deserializer",
    "value.deserializer",
)
"""What a tool's file may well hold and gpu-ledger decides itself: told, not obeyed."""

_WITHOUT_EFFECT: Final = ("sasl.login.callback.handler.class", "ssl.protocol", "ssl.enabled.protocols")
"""Needed by Java clients for what kafka-python does of itself."""

_MODULES: Final = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
}
_PEM_HINT: Final = (
    "convert it to PEM (keytool -importkeystore -deststoretype PKCS12, then openssl pkcs12) "
    "and say ssl.{}.type=PEM"
)


class OAuth(NamedTuple):
    """Where OAUTHBEARER tokens come from: a file, an endpoint, or a name alone (unsecured)."""

    token_file: Path | None = None
    endpoint: str = ""
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""
    unsecured_subject: str = ""

    def __repr__(self) -> str:
        where = self.token_file or self.endpoint or "unsecured"
        return f"OAuth({where})"


class Security(NamedTuple):
    """How to speak to brokers. Certificates and keys are PEM texts."""

    protocol: str = "PLAINTEXT"
    truststore: str = ""
    """Certificates to trust; empty: those of the system."""
    certificates: str = ""
    """The client's certificate chain; empty: none."""
    key: str = ""
    key_password: str = ""
    check_hostname: bool = True
    mechanism: str = ""
    username: str = ""
    password: str = ""
    oauth: OAuth | None = None

    def __repr__(self) -> str:
        return f"Security({self.protocol}{f', {self.mechanism}' if self.mechanism else ''})"


class Properties(NamedTuple):
    """What a file says. `ignored` are keys that have no effect here, to be told to the person."""

    security: Security = Security()
    client_id: str = ""
    ignored: tuple[str, ...] = ()


def read_properties(path: Path) -> Properties:
    """Return what a properties file says.

    Raises:
        UsageError: it cannot be read, or says something that is not understood; `where` gives
            file and key, and no text repeats a value that may be secret.

    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise UsageError("is not text in UTF-8", where=str(path)) from None
    return _understand(parse_properties(text), path)


def parse_properties(text: str) -> dict[str, str]:
    """Return the keys and values of a text in Java's properties form, the last of equal keys."""
    values: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        logical = line.lstrip(" \t\f")
        if not logical or logical[0] in "#!":
            continue
        while _continues(logical):
            logical = logical[:-1] + next(lines, "").lstrip(" \t\f")
        match = re.match(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", logical, re.DOTALL)
        if match:
            values[_unescape(match[1])] = _unescape(match[2])
    return values


def parse_jaas(text: str) -> tuple[str, dict[str, str]]:
    """Return the login module's short name and the options of a `sasl.jaas.config`.

    Raises:
        ValueError: it is not of the form `module required name="value" ...;`.

    """
    match = re.fullmatch(r"\s*([\w.]+)\s+(required|requisite|sufficient|optional)\b(.*);\s*", text, re.DOTALL)
    if match is None:
        raise ValueError('is not of the form: module required name="value" ...;')
    options: dict[str, str] = {}
    rest = match[3]
    while rest := rest.lstrip():
        option = re.match(
            r"""([\w.]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s;"']+))""", rest, re.DOTALL
        )
        if option is None:
            raise ValueError(f'has something other than name="value" after {len(options)} options')
        quoted = option[2] if option[2] is not None else option[3]
        options[option[1]] = option[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        rest = rest[option.end() :]
    return match[1].rpartition(".")[2], options


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(match[2], match[2])

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", one, text, flags=re.DOTALL)


def _understand(values: dict[str, str], path: Path) -> Properties:
    known = (*_TAKEN, *_OURS, *_WITHOUT_EFFECT)
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"understood are {', '.join(_TAKEN)}"
            raise UsageError("is not understood", where=f"{path}, {key}", hint=hint)
    protocol = _one_of(values, path, "security.protocol", PROTOCOLS, "PLAINTEXT")
    security = Security(protocol)
    if protocol.endswith("SSL"):
        security = _with_ssl(security, values, path)
    if protocol.startswith("SASL"):
        security = _with_sasl(security, values, path)
    return Properties(
        security, values.get("client.id", ""), tuple(sorted(key for key in values if key in _OURS))
    )


def _with_ssl(security: Security, values: dict[str, str], path: Path) -> Security:
    algorithm = values.get("ssl.endpoint.identification.algorithm", "https").strip()
    if algorithm.lower() not in ("https", ""):
        where = f"{path}, ssl.endpoint.identification.algorithm"
        raise UsageError("is neither https nor empty", where=where)
    truststore = values.get("ssl.truststore.certificates") or _pem(values, path, "truststore")
    keystore = _pem(values, path, "keystore")
    key = values.get("ssl.keystore.key") or keystore
    chain = values.get("ssl.keystore.certificate.chain") or keystore
    if bool(key) != bool(chain):
        raise UsageError("key and certificate chain go together", where=f"{path}, ssl.keystore.key")
    return security._replace(
        truststore=truststore,
        key=key,
        certificates=chain,
        key_password=values.get("ssl.key.password", ""),
        check_hostname=bool(algorithm),
    )


def _with_sasl(security: Security, values: dict[str, str], path: Path) -> Security:
    # Kafka's own default is GSSAPI, which we do not speak: so it must be said.
    mechanism = _one_of(values, path, "sasl.mechanism", MECHANISMS, "")
    where = f"{path}, sasl.jaas.config"
    if "sasl.jaas.config" not in values:
        raise UsageError("is missing", where=where, hint=f"{mechanism} needs a {_MODULES[mechanism]}")
    try:
        module, options = parse_jaas(values["sasl.jaas.config"])
    except ValueError as error:
        raise UsageError(str(error), where=where) from None
    if module != _MODULES[mechanism]:
        raise UsageError(f"{mechanism} needs {_MODULES[mechanism]}, not {module}", where=where)
    if mechanism == "OAUTHBEARER":
        return security._replace(mechanism=mechanism, oauth=_oauth(options, values, path))
    for name in ("username", "password"):
        if not options.get(name):
            raise UsageError(f"has no {name}", where=where)
    return security._replace(mechanism=mechanism, username=options["username"], password=options["password"])


def _oauth(options: dict[str, str], values: dict[str, str], path: Path) -> OAuth:
    endpoint = values.get("sasl.oauthbearer.token.endpoint.url", "")
    if endpoint.startswith("file:"):
        return OAuth(token_file=Path(re.sub(r"^file:(//)?", "", endpoint)))
    if endpoint:
        if not re.match(r"https://|http://(localhost|127\.0\.0\.1)[:/]", endpoint):
            where = f"{path}, sasl.oauthbearer.token.endpoint.url"
            raise UsageError("is neither https nor a file", where=where, hint="secrets go to it")
        for name in ("clientId", "clientSecret"):
            if not options.get(name):
                raise UsageError(f"has no {name}", where=f"{path}, sasl.jaas.config")
        return OAuth(
            endpoint=endpoint,
            client_id=options["clientId"],
            client_secret=options["clientSecret"],
            scope=options.get("scope", ""),
        )
    if subject := options.get("unsecuredLoginStringClaim_sub"):
        return OAuth(unsecured_subject=subject)
    hint = "give sasl.oauthbearer.token.endpoint.url"
    raise UsageError("does not say where tokens come from", where=f"{path}, sasl.jaas.config", hint=hint)


def _one_of(values: dict[str, str], path: Path, key: str, known: tuple[str, ...], default: str) -> str:
    value = values.get(key, default).strip().upper()
    if value not in known:
        raise UsageError(f"is none of {', '.join(known)}", where=f"{path}, {key}")
    return value


def _pem(values: dict[str, str], path: Path, store: str) -> str:
    """Return the PEM text in a store's file; empty if none is given."""
    location = values.get(f"ssl.{store}.location", "")
    kind = values.get(f"ssl.{store}.type", "").upper()
    where = f"{path}, ssl.{store}.location"
    if kind not in ("", "PEM"):
        raise UsageError(
            f"{kind} cannot be read", where=f"{path}, ssl.{store}.type", hint=_PEM_HINT.format(store)
        )
    if not location:
        return ""
    try:
        data = Path(location).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=where) from None
    if b"-----BEGIN " not in data:
        raise UsageError("holds no PEM", where=where, hint=_PEM_HINT.format(store))
    return data.decode("utf-8", "replace")
