"""Makes the keys of a federation; run by Flower's own Python, which has ``cryptography``.

``python keys.py FOLDER HOST NAME...`` writes ``ca.crt``, ``link.pem`` and ``link.key`` (TLS of the
SuperLink, for HOST and this machine) and for each NAME a node key ``NAME`` with ``NAME.pub`` (ECDSA
P-384 in SSH format) and ``NAME.token``. The key that signs is never written: a new host wants new
certificates. Nothing of fedvlm is imported here.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
import sys
from pathlib import Path
from typing import Any

DAYS = 365


def main(folder: Path, host: str, names: list[str]) -> None:
    """Write all files; those that are there stay."""
    if not (folder / "ca.crt").is_file():
        _tls(folder, host)
    for name in names:
        if not (folder / f"{name}.pub").is_file():
            _node(folder, name)
        if not (folder / f"{name}.token").is_file():
            _secret(folder / f"{name}.token", secrets.token_hex(32).encode())


def _tls(folder: Path, host: str) -> None:
    from cryptography import x509  # optional: fedvlm[flower]
    from cryptography.hazmat.primitives import hashes, serialization  # optional: fedvlm[flower]
    from cryptography.hazmat.primitives.asymmetric import ec  # optional: fedvlm[flower]
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # optional: fedvlm[flower]

    now = datetime.datetime.now(datetime.UTC)

    def begun(subject: str, issuer: str, key: Any) -> Any:
        names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)]) for n in (subject, issuer)]
        return (
            x509.CertificateBuilder().subject_name(names[0]).issuer_name(names[1])
            .public_key(key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=DAYS))
        )

    def usage(signs: bool) -> Any:
        return x509.KeyUsage(
            digital_signature=not signs, key_cert_sign=signs, crl_sign=signs,
            content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, encipher_only=False, decipher_only=False,
        )

    authority, link = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(
        ec.SECP256R1())
    root = begun("fedvlm federation", "fedvlm federation", authority).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    ).add_extension(usage(signs=True), critical=True).sign(authority, hashes.SHA256())
    hosts = [x509.DNSName("localhost")] + [
        x509.IPAddress(ipaddress.ip_address(a)) for a in ("127.0.0.1", "::1")]
    if host not in ("localhost", "127.0.0.1", "::1"):
        hosts.append(_named(x509, host))
    leaf = begun("fedvlm link", "fedvlm federation", link).add_extension(
        x509.SubjectAlternativeName(hosts), critical=False
    ).add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True).add_extension(
        usage(signs=False), critical=True
    ).add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
    ).sign(authority, hashes.SHA256())
    pem = serialization.Encoding.PEM
    _secret(folder / "link.key", link.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    (folder / "link.pem").write_bytes(leaf.public_bytes(pem))
    (folder / "ca.crt").write_bytes(root.public_bytes(pem))


def _named(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _node(folder: Path, name: str) -> None:
    from cryptography.hazmat.primitives import serialization  # optional: fedvlm[flower]
    from cryptography.hazmat.primitives.asymmetric import ec  # optional: fedvlm[flower]

    key = ec.generate_private_key(ec.SECP384R1())
    _secret(folder / name, key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption()))
    (folder / f"{name}.pub").write_bytes(key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH) + b"\n")


def _secret(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
