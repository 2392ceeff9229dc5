"""Print what fedvlm is made of on this machine: an SBOM (CycloneDX 1.5, JSON).

    python scripts/sbom.py > sbom.json

Components are the distributions that fedvlm requires, and what those require, as they are
installed here, with version and licence; nothing is asked of a network.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata

from packaging.requirements import Requirement


def distributions(name: str = "fedvlm") -> dict[str, metadata.Distribution]:
    """Return a distribution and all that it needs here, by normal name."""
    found: dict[str, metadata.Distribution] = {}
    left = [name]
    while left:
        one = left.pop()
        key = re.sub(r"[-_.]+", "-", one).lower()
        try:
            there = metadata.distribution(one)
        except metadata.PackageNotFoundError:
            continue  # of another platform
        if key in found:
            continue
        found[key] = there
        needs = [Requirement(words) for words in there.requires or ()]
        left += [r.name for r in needs if r.marker is None or r.marker.evaluate({"extra": ""})]
    return dict(sorted(found.items()))


def licence(there: metadata.Distribution) -> str:
    """Return what a distribution says of its licence; empty where it says nothing."""
    told = there.metadata
    classes = [c.rpartition(" :: ")[2] for c in told.get_all("Classifier") or ()
               if c.startswith("License ::") and not c.endswith("OSI Approved")]
    words = told.get("License-Expression") or "; ".join(classes) or told.get("License") or ""
    return str(words).partition("\n")[0].strip()[:200]


def sbom() -> dict[str, object]:
    """Return the bill of materials."""
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "components": [{
            "type": "library", "name": key, "version": there.version,
            "purl": f"pkg:pypi/{key}@{there.version}",
            **({"licenses": [{"license": {"name": licence(there)}}]} if licence(there) else {}),
        } for key, there in distributions().items()],
    }


if __name__ == "__main__":
    json.dump(sbom(), sys.stdout, indent=1)
