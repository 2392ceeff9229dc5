"""Makes the keys of a federation; run by Flower's own Python, which has ``cryptography``.

``python keys.py FOLDER HOSTS NAME...`` writes ``ca.crt``, ``link.pem`` and ``link.key`` (TLS of the
SuperLink, for HOSTS, a comma between them, and this machine; none: no TLS) and for each NAME a node
key ``NAME`` with ``NAME.pub`` (ECDSA P-384 in SSH format). What is there stays, but a certificate
that ends soon, or is not for all HOSTS, is made anew, and that is printed: a word (``link``: sites
go on with the ``ca.crt`` that they have; ``ca``: they need the new one) and why.
The key that signs (``ca.key``) lies beside the SuperLink's own, which is worth as much: who reads
either can stand for the SuperLink. Nothing of fedvlm is imported here.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import sys
from pathlib import Path
from typing import Any

DAYS, YEARS = 365, 10  # of the SuperLink's certificate; of the one that signs it
SOON = 30  # days before its end a certificate is made anew
HERE = ("localhost", "127.0.0.1", "::1")


def main(folder: Path, hosts: list[str], names: list[str]) -> tuple[str, str]:
    """Write all files; return which certificate was made anew, and why."""
    renewed = _tls(folder, hosts) if hosts else ("", "")
    for name in names:
        if not (folder / f"{name}.pub").is_file():
            _node(folder, name)
    return renewed


def _tls(folder: Path, hosts: list[str]) -> tuple[str, str]:
    """Write certificates where there are none, or those that are there do not do any more."""
    from cryptography import x509  # optional: fedvlm[flower]
    from cryptography.hazmat.primitives import serialization  # optional: fedvlm[flower]

    hosts = list(dict.fromkeys([*HERE, *hosts]))
    if not (folder / "ca.crt").is_file():
        _sign(folder, hosts, None)
        return "", ""
    root = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    leaf = x509.load_pem_x509_certificate((folder / "link.pem").read_bytes())
    ends = min(root.not_valid_after_utc, leaf.not_valid_after_utc)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    lacks = [host for host in hosts if _named(x509, host) not in names]
    soon = datetime.timedelta(days=SOON)
    now = datetime.datetime.now(datetime.UTC)
    if ends - now > soon and not lacks:
        return "", ""
    why = f"it is not for {', '.join(lacks)}" if lacks else (
        f"it {'ended' if ends < now else 'ends'} on {ends:%Y-%m-%d}")
    signs = (folder / "ca.key").is_file() and root.not_valid_after_utc - now > soon
    _sign(folder, hosts, (root, serialization.load_pem_private_key(
        (folder / "ca.key").read_bytes(), None)) if signs else None)
    return ("link" if signs else "ca"), why


def _sign(folder: Path, hosts: list[str], signer: Any) -> None:
    """Write the SuperLink's certificate, and the one that signs it where none is given."""
    from cryptography import x509  # optional: fedvlm[flower]
    from cryptography.hazmat.primitives import hashes, serialization  # optional: fedvlm[flower]
    from cryptography.hazmat.primitives.asymmetric import ec  # optional: fedvlm[flower]
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # optional: fedvlm[flower]

    now = datetime.datetime.now(datetime.UTC)

    def begun(subject: str, key: Any, days: int) -> Any:
        names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)])
                 for n in (subject, "fedvlm federation")]
        return (
            x509.CertificateBuilder().subject_name(names[0]).issuer_name(names[1])
            .public_key(key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=days))
        )

    def usage(signs: bool) -> Any:
        return x509.KeyUsage(
            digital_signature=not signs, key_cert_sign=signs, crl_sign=signs,
            content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, encipher_only=False, decipher_only=False,
        )

    def private(key: Any) -> bytes:
        data: bytes = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return data

    pem, link = serialization.Encoding.PEM, ec.generate_private_key(ec.SECP256R1())
    if signer is None:
        (folder / "ca.crt").unlink(missing_ok=True)  # killed meanwhile: all of it again
        authority = ec.generate_private_key(ec.SECP256R1())
        root = begun("fedvlm federation", authority, 365 * YEARS).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        ).add_extension(usage(signs=True), critical=True).add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False
        ).sign(authority, hashes.SHA256())
        signer = root, authority
        write_secret(folder / "ca.key", private(authority))
    leaf = begun("fedvlm link", link, DAYS).add_extension(
        x509.SubjectAlternativeName([_named(x509, host) for host in hosts]), critical=False
    ).add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True).add_extension(
        usage(signs=False), critical=True
    ).add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
    ).add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer[1].public_key()), critical=False
    ).sign(signer[1], hashes.SHA256())
    write_secret(folder / "link.key", private(link))
    (folder / "link.pem").write_bytes(leaf.public_bytes(pem))
    (folder / "ca.crt").write_bytes(signer[0].public_bytes(pem))


def _named(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _node(folder: Path, name: str) -> None:
    from cryptography.hazmat.primitives import serialization  # optional: fedvlm[flower]
    from cryptography.hazmat.primitives.asymmetric import ec  # optional: fedvlm[flower]

    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(folder / name, key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption()))
    (folder / f"{name}.pub").write_bytes(key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        + f" {name}\n".encode())


def write_secret(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


if __name__ == "__main__":
    word, reason = main(Path(sys.argv[1]), [h for h in sys.argv[2].split(",") if h], sys.argv[3:])
    if word:
        os.write(1, f"{word} {reason}\n".encode())  # for who began this
