"""The bill of materials names what fedvlm needs, with versions and licences."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.jobs import REPOSITORY


def test_the_bill_names_what_fedvlm_needs() -> None:
    words = [sys.executable, "scripts/sbom.py"]
    ran = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    bill = json.loads(ran.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    there = {one["name"]: one for one in bill["components"]}
    assert {"fedvlm", "torch", "numpy", "safetensors", "yacs"} <= there.keys()
    assert "pytest" not in there  # of an extra
    assert all(one["purl"].endswith(f"@{one['version']}") for one in bill["components"])
    assert "Apache" in there["fedvlm"]["licenses"][0]["license"]["name"]
