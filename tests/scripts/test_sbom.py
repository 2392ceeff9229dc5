"""What fedvlm needs: every licence is known, and one that lets others use fedvlm freely."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from tests.jobs import REPOSITORY

FREE = re.compile(
    r"\b(MIT|BSD|0BSD|Apache|ISC|PSF|Python Software Foundation|MPL-2\.0|Zlib|BSL-1\.0|CC0)"
)
COPYLEFT = re.compile(r"(?<!L)\bA?GPL|GNU General Public", re.IGNORECASE)
CUDA = re.compile(r"nvidia-|cuda-")  # NVIDIA's own libraries, which PyTorch's CUDA build brings


def test_every_distribution_that_fedvlm_needs_has_a_permissive_licence() -> None:
    words = [sys.executable, "scripts/sbom.py"]
    ran = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    bill = json.loads(ran.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    told = {one["name"]: one.get("licenses", [{}])[0].get("license", {}).get("name", "")
            for one in bill["components"]}
    assert {"fedvlm", "torch", "safetensors", "yacs"} <= told.keys()
    assert all(one["purl"].endswith(f"@{one['version']}") for one in bill["components"])
    ours = {name: words for name, words in told.items() if not CUDA.match(name)}
    assert {n: w for n, w in ours.items() if not FREE.search(w) or COPYLEFT.search(w)} == {}
