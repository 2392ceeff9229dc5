"""What a site and a coordinator on two machines hand to each other: one file each way.

The site hands over its public key, a line in SSH format whose comment is the site's name
(``clinic_a.pub``). The coordinator answers with an invitation (JSON, ``fedvlm-invitation/1``): the
address, the certificate that signs the SuperLink's, and the fingerprint of the key that it admits.
Neither is a secret. Whoever can change them on the way could stand in for one of the two, so both
sides show fingerprints, to be compared by another way than the files went.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError

FORMAT = "fedvlm-invitation/1"
KIND = "ecdsa-sha2-nistp384"  # the only keys that are made here, and admitted
POINT = 97  # bytes at the end of such a key, in SSH's form and in X.509's
LARGEST = 100_000  # bytes of either file
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_OURS = re.compile(r"link|door|site\d+")  # processes, and sites on the coordinator's machine
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]+-----END CERTIFICATE-----\n?")


@dataclass(frozen=True)
class PublicKey:
    """A site's public key, as it was handed over.

    Attributes:
        name: the site's.
        line: in SSH's format, without the name.
    """

    name: str
    line: str

    @property
    def fingerprint(self) -> str:
        """Return what ``ssh-keygen -lf`` shows."""
        return _mark(base64.b64decode(self.line.split()[1]))


@dataclass(frozen=True)
class Invitation:
    """What a site has to know to take part from another machine.

    Attributes:
        name: the site's, as the coordinator admitted it.
        address: ``host:port`` of the coordinator's machine.
        certificate: PEM; it signs the SuperLink's.
        key: fingerprint of the site's key.
    """

    name: str
    address: str
    certificate: str
    key: str

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the certificate."""
        body = "".join(self.certificate.split("-----")[2].split())
        return _mark(base64.b64decode(body))

    def write(self, path: Path) -> None:
        """Write it.

        Raises:
            DataError: that cannot be.
        """
        files.write_json(path, {"format": FORMAT} | asdict(self))


def _mark(data: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def host_port(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``.

    Raises:
        ConfigError: it is none.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"'{address}' is not an address (HOST:PORT)")
    return host.strip("[]"), int(port)


def check_name(name: str) -> str:
    """Return the name of a site on a machine of its own.

    Raises:
        ConfigError: it is none.
    """
    if not _NAME.fullmatch(name) or _OURS.fullmatch(name):
        raise ConfigError(
            f"'{name[:60]}' is not a site name: use a letter, then up to 39 letters, digits, - or "
            "_; site0, site1, ... are those on the coordinator's machine")
    return name


def read_public(path: Path, name: str = "") -> PublicKey:
    """Return the public key in a file.

    Args:
        name: of the site; empty: the comment of the key.

    Raises:
        ConfigError: there is no such file, the site has no name, or it is a private key.
        DataError: it holds no key of the right kind.
    """
    text = _text(path, "fedvlm site key writes one")
    if "PRIVATE" in text:
        raise ConfigError(f"'{path}' is a private key and must stay at the site: hand over "
                          "the file that ends in .pub")
    words = text.split()
    good = len(words) in (2, 3) and words[0] == KIND and len(text.strip().splitlines()) == 1
    try:
        data = base64.b64decode(words[1], validate=True) if good else b""
    except ValueError:
        data = b""
    if len(data) != 4 + len(KIND) + 4 + len("nistp384") + 4 + POINT:
        raise DataError(f"'{path}' has no public key of a site: one line that begins with "
                        f"{KIND} (fedvlm site key writes it)")
    return PublicKey(check_name(name or (words[2] if len(words) == 3 else "")),
                     f"{words[0]} {words[1]}")


def point(line: str) -> bytes:
    """Return the point of a public key in SSH's format, or in PEM: what two forms of one share."""
    body = "".join(w for w in line.splitlines() if not w.startswith("-----"))
    words = body.split()
    return base64.b64decode(words[1] if len(words) > 1 else body)[-POINT:]


def read_invitation(path: Path) -> Invitation:
    """Return the invitation in a file.

    Raises:
        ConfigError: there is no such file.
        DataError: it is none, or damaged.
    """
    text = _text(path, "the coordinator's fedvlm federation admit writes one")
    try:
        plain = json.loads(text)
        if plain["format"] != FORMAT:
            raise ValueError(plain["format"])
        told = Invitation(*(str(plain[k]) for k in ("name", "address", "certificate", "key")))
        host_port(told.address)
        if not _NAME.fullmatch(told.name) or not _PEM.fullmatch(told.certificate):
            raise ValueError("name or certificate")
        if not told.fingerprint:
            raise ValueError("fingerprint")
    except (ConfigError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"'{path}' is not an invitation to a federation, or is damaged: ask the coordinator "
            "for the file that fedvlm federation admit wrote"
        ) from error
    return told


def _text(path: Path, who: str) -> str:
    with files.explain_errors(path):
        if not path.is_file():
            raise ConfigError(f"there is no '{path}': {who}")
        return path.read_bytes()[:LARGEST].decode(errors="replace")
