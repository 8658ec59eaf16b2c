"""Where the relay listens, and its certificate: given, or made once and kept. Source: spec 80 §1, case X-30.

What is wrong with a setting or a file is a `StartError`: one line that names it, and the exit code.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import socket
import ssl
import stat
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from cryptography import x509

EX_UNAVAILABLE: Final = 69
EX_NOPERM: Final = 77
EX_CONFIG: Final = 78
VALID_DAYS: Final = 397  # what browsers accept at most
RENEW_DAYS: Final = 30
BACKLOG: Final = 256
KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))


class StartError(Exception):
    """The relay can't start; `exit_code` is the sysexits number."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@attrs.frozen
class Identity:
    """TLS as it is spoken: the context and what a person compares on the first visit."""

    context: ssl.SSLContext
    fingerprint: str


def split_listen(listen: str) -> tuple[str, int]:
    """Return host and port. Raises: StartError."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise StartError(f'[relay] listen: {listen!r} is no HOST:PORT such as "127.0.0.1:7391"', EX_CONFIG)
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str, port: int) -> socket.socket:
    """Listen. Raises: StartError 69 when the port is taken, 78 for an address that is not this machine's."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise StartError(f"[relay] listen: {host}: {error.strerror}", EX_CONFIG) from None
    bound = socket.socket(family, kind | socket.SOCK_CLOEXEC, proto)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:  # what is accepted inherits them
            bound.setsockopt(socket.IPPROTO_TCP, option, value)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except PermissionError:
        bound.close()
        raise StartError(f"[relay] listen: {host}:{port} may not be bound by this user", EX_NOPERM) from None
    except OSError as error:
        bound.close()
        taken = "is taken by another program" if error.errno == 98 else f"can't be bound: {error.strerror}"
        raise StartError(f"[relay] listen: {host}:{port} {taken}", EX_UNAVAILABLE) from None
    return bound


def identity(tls: Any, host: str, folder: Path) -> Identity | None:
    """Return what TLS needs; None for plain HTTP, which only loopback may speak. Raises: StartError."""
    if tls == "off":
        if not is_loopback(host):
            message = f'[relay] tls = "off" is for loopback only, and listen names {host}; leave tls out'
            raise StartError(message, EX_CONFIG)
        return None
    if tls == "auto":
        return _load(*_kept(folder, host))
    if not isinstance(tls, dict) or not all(isinstance(tls.get(key), str) for key in ("cert", "key")):
        raise StartError('[relay] tls: "auto", "off" or { cert = "…", key = "…" }', EX_CONFIG)
    cert, key = Path(tls["cert"]), Path(tls["key"])
    _judge_key(key)
    return _load(cert, key)


def _judge_key(key: Path) -> None:
    try:
        status = key.stat()
    except OSError as error:
        raise StartError(f"[relay] tls.key: {key}: {error.strerror}", EX_CONFIG) from None
    if status.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(status.st_mode) & 0o077:
        message = f"[relay] tls.key: others may read {key} (mode {stat.S_IMODE(status.st_mode):04o}); chmod 600 {key}"
        raise StartError(message, EX_NOPERM)


def _load(cert: Path, key: Path) -> Identity:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key, password=_no_password)
        digest = x509.load_pem_x509_certificate(cert.read_bytes()).fingerprint(SHA256())
    except OSError as error:  # ssl.SSLError is one
        what = error.strerror or getattr(error, "reason", None) or "no certificate and key that belong together"
        raise StartError(f"[relay] tls: {cert} and {key}: {what}", EX_CONFIG) from None
    except ValueError:
        raise StartError(f"[relay] tls.cert: {cert} holds no certificate in PEM form", EX_CONFIG) from None
    return Identity(context, digest.hex(":").upper())


def _no_password() -> str:
    """Refuse keys with a password: nobody is there to type it."""
    raise ValueError("the key has a password")


def _kept(folder: Path, host: str) -> tuple[Path, Path]:
    """Return the certificate of this relay's own; made when there is none that is still good for this address."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if cert.exists() and key.exists() and _still_good(cert, host):
        _judge_key(key)
        return cert, key
    _make(cert, key, host)
    return cert, key


def _names(host: str) -> list[x509.GeneralName]:
    from cryptography import x509

    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    names += [x509.IPAddress(ipaddress.ip_address(text)) for text in ("127.0.0.1", "::1")]
    with contextlib.suppress(ValueError):
        names.append(x509.DNSName(socket.gethostname()))
    try:
        address = ipaddress.ip_address(host)
        if not address.is_unspecified and not address.is_loopback:
            names.append(x509.IPAddress(address))
    except ValueError:
        if host != "localhost":
            names.append(x509.DNSName(host))
    return names


def _still_good(cert: Path, host: str) -> bool:
    from cryptography import x509

    try:
        known = x509.load_pem_x509_certificate(cert.read_bytes())
        names = known.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, OSError, x509.ExtensionNotFound):
        return False
    now = datetime.datetime.now(datetime.UTC)
    if known.not_valid_after_utc - now < datetime.timedelta(days=RENEW_DAYS):
        return False
    return all(name in names for name in _names(host))


def _make(cert: Path, key: Path, host: str) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Kite relay")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS - 1))
        .add_extension(x509.SubjectAlternativeName(_names(host)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    _write(key, private.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    _write(cert, made.public_bytes(pem))


def _write(path: Path, data: bytes) -> None:
    """Put a whole file there, 0600 from its first instant; safe over a crash."""
    fresh = path.with_name(path.name + ".new")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    with _directory(path.parent) as parent:
        os.fsync(parent)


@contextlib.contextmanager
def _directory(path: Path) -> Generator[int, None, None]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only this user reads, whole or not at all."""
    _write(path, data)
