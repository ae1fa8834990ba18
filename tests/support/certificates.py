"""Certificates of a test's own authority, for servers that a client is to trust or not. Used by tests of webhooks."""

import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates. Its own is in `file`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("tests")
        self.certificate = self._sign(self._name, self._key, None, expired=False)
        self.file = directory / "authority.pem"
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def server(self, host: str, *, expired: bool = False, trusted: bool = True) -> ssl.SSLContext:
        """The context of a server with a certificate for this host; not `trusted`: signed by itself."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self if trusted else Authority(self._directory / _made(self._directory))
        certificate = issuer._sign(_name(host), key, host, expired=expired)
        file = self._directory / f"{_made(self._directory).name}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _sign(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, host: str | None, *, expired: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        end = now - _DAY if expired else now + _DAY
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 3 * _DAY)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        )
        if host is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _made(directory: Path) -> Path:
    made = directory / f"certificate-{len(list(directory.iterdir()))}"
    made.mkdir()
    return made
