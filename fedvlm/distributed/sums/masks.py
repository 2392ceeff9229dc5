"""The arithmetic of secure sums: fixed point, masks that cancel, secrets in shares.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017.
Site i sends, modulo 2^64,

    y_i = x_i + PRG(b_i) + sum over j after i of PRG(m_ij) - sum over j before i of PRG(m_ij)

with m_ij of a key agreement (X25519, HKDF), b_i its own secret and PRG the keystream of ChaCha20.
In the sum over all sites the m_ij cancel. Both b_i and the key that m_ij come from lie at the other
sites in shares (Shamir 1979), of which ``threshold`` together say the secret: b_i of who sent its
sum, the key of who did not; never both of one site.

A number x becomes round(x 2^40): what is lost is at most 2^-41 (4.5e-13) for each site.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedvlm.core.errors import ConfigError

FEWEST = 3  # sites: the sum of two tells each of them the other's
BITS, WEIGHT_BITS = 40, 20  # behind the point, of moves and of weights
REACH = 2.0**22  # largest move, and largest sum of moves: 2^62 in fixed point
HEAVIEST = 2.0**40  # largest sum of weights
PRIME = 2**521 - 1
SECRET, WIDE = 32, 66  # bytes of a secret, of a share
_NONCE = bytes(12)  # every key seals one message


def threshold(sites: int) -> int:
    """Return how many sites together can say a secret: more than two thirds, and ``FEWEST``.

    A server that tells some sites that another sent its sum, and others that it did not, then gets
    too few answers to one of both questions (Bonawitz et al., section 6.2), unless it has exchanged
    keys or invented sites.
    """
    return max(FEWEST, 2 * sites // 3 + 1)


def require_cryptography() -> None:
    """Refuse to go on without the package.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import cryptography  # noqa: F401 (optional: fedvlm[secure])
    except ImportError:
        raise ConfigError("FED.SECURE_SUM needs the package cryptography, here and at every site: "
                          "pip install 'fedvlm[secure]'") from None


# ---- fixed point -----------------------------------------------------------------------------
def to_fixed(values: np.ndarray, bits: int = BITS) -> np.ndarray:
    """Return float64 numbers in fixed point, uint64 (negative ones modulo 2^64)."""
    return np.rint(values * 2.0**bits).astype(np.int64).view(np.uint64)


def from_fixed(numbers: np.ndarray, bits: int = BITS) -> np.ndarray:
    """Return numbers in fixed point as float64."""
    return numbers.view(np.int64).astype(np.float64) / 2.0**bits


# ---- keys ------------------------------------------------------------------------------------
def bound_to(*words: Any) -> bytes:
    """Return a digest of plain values: what a key is bound to."""
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).digest()


def derive(secret: bytes, *words: Any) -> bytes:
    """Return a key of a secret for one purpose (HKDF with SHA-256), 32 bytes."""
    from cryptography.hazmat.primitives.hashes import SHA256  # optional: fedvlm[secure]
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # optional: fedvlm[secure]

    key: bytes = HKDF(SHA256(), SECRET, None, bound_to(*words)).derive(secret)
    return key


def public_of(secret: bytes) -> bytes:
    """Return the public key of an X25519 key of 32 bytes."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import (  # optional: fedvlm[secure]
        X25519PrivateKey,
    )

    raw: bytes = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
    return raw


def agree(secret: bytes, public: bytes, *words: Any) -> bytes:
    """Return the key that two sites have in common, for one purpose.

    Raises:
        ValueError: the other's key is none.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import (  # optional: fedvlm[secure]
        X25519PrivateKey,
        X25519PublicKey,
    )

    own, other = X25519PrivateKey.from_private_bytes(secret), X25519PublicKey
    return derive(own.exchange(other.from_public_bytes(public)), *words)


def keystream(key: bytes, count: int) -> np.ndarray:
    """Return ``count`` numbers of ChaCha20's keystream, uint64."""
    from cryptography.hazmat.primitives.ciphers import Cipher  # optional: fedvlm[secure]
    from cryptography.hazmat.primitives.ciphers.algorithms import (  # optional: fedvlm[secure]
        ChaCha20,
    )

    cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * count)), "<u8")


def shut(key: bytes, data: bytes) -> bytes:
    """Return data sealed for whoever has the key (ChaCha20-Poly1305); a key seals once."""
    from cryptography.hazmat.primitives.ciphers.aead import (  # optional: fedvlm[secure]
        ChaCha20Poly1305,
    )

    sealed: bytes = ChaCha20Poly1305(key).encrypt(_NONCE, data, None)
    return sealed


def unshut(key: bytes, sealed: bytes) -> bytes | None:
    """Return what was sealed; None: it was not, or not with this key."""
    from cryptography.exceptions import InvalidTag  # optional: fedvlm[secure]
    from cryptography.hazmat.primitives.ciphers.aead import (  # optional: fedvlm[secure]
        ChaCha20Poly1305,
    )

    try:
        data: bytes = ChaCha20Poly1305(key).decrypt(_NONCE, sealed, None)
    except InvalidTag:
        return None
    return data


# ---- masks -----------------------------------------------------------------------------------
def pair_masks(
    secret: bytes, me: str, publics: Mapping[str, bytes], count: int, *words: Any
) -> np.ndarray:
    """Return the sum of a site's masks with others, modulo 2^64.

    Args:
        secret: the site's key.
        me: its name; masks are added for names after it, and taken off for names before it.
        publics: of the others.
        words: what the masks are bound to.
    """
    total = np.zeros(count, np.uint64)
    for name, public in publics.items():
        mask = keystream(agree(secret, public, "mask", *words), count)
        total = total + mask if me < name else total - mask
    return total


# ---- shares ----------------------------------------------------------------------------------
def make_shares(secret: bytes, sites: int, seed: bytes) -> list[int]:
    """Return a share of a secret for each site; ``threshold`` of them say it, fewer nothing.

    The values at 1, 2, ... of a polynomial over the field of ``PRIME`` elements, whose coefficients
    are drawn by ``seed``.
    """
    draw = keystream(seed, 10 * (threshold(sites) - 1)).tobytes()  # 80 bytes each
    rest = [int.from_bytes(draw[at : at + 80], "little") for at in range(0, len(draw), 80)]
    row = [int.from_bytes(secret, "little"), *rest]
    return [sum(a * x**k for k, a in enumerate(row)) % PRIME for x in range(1, sites + 1)]


def join_shares(shares: Mapping[int, int]) -> bytes | None:
    """Return the secret of shares by place (from 1); None: they are of no secret.

    Lagrange's formula at zero.
    """
    total = 0
    for x, share in shares.items():
        over, under = 1, 1
        for other in shares:
            if other != x:
                over, under = over * -other % PRIME, under * (x - other) % PRIME
        total += share * over * pow(under, -1, PRIME)
    total %= PRIME
    return total.to_bytes(SECRET, "little") if total < 1 << (8 * SECRET) else None


def to_text(shares: Sequence[int]) -> bytes:
    """Return shares as bytes, ``WIDE`` each."""
    return b"".join(share.to_bytes(WIDE, "little") for share in shares)


def from_text(data: bytes) -> list[int]:
    """Return shares of bytes."""
    return [int.from_bytes(data[at : at + WIDE], "little") for at in range(0, len(data), WIDE)]
