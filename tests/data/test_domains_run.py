"""Every multi-domain config runs from the command line on a miniature of its set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from domain_trees import CLASSES, write_domain_set

from fedvlm.cli.main import main
from fedvlm.data.catalog import CATALOG
from fedvlm.data.layouts import DOMAIN_LAYOUTS

CONFIGS = {
    "domainnet": "DomainNet", "domainnet_full": "DomainNetFull",
    "office_caltech10": "OfficeCaltech10", "pacs": "PACS", "office_home": "OfficeHome",
    "office31": "Office31",
}  # fmt: skip


CASES = [(stem, "domain") for stem in CONFIGS] + [("pacs", "domain_dirichlet")]


@pytest.mark.parametrize(("stem", "kind"), CASES)
def test_config_runs(stem: str, kind: str, tmp_path: Path) -> None:
    name = CONFIGS[stem]
    layout = DOMAIN_LAYOUTS[name][-1].name
    write_domain_set(name, layout, tmp_path / "DATA")
    line = (
        f"run --root {tmp_path}/DATA --dataset {stem} --partition {kind} --backbone tiny "
        f"--trainer promptfl --rounds 1 --shots 2 --output-dir {tmp_path}/out"
    )
    assert main(line.split()) == 0
    (found,) = (tmp_path / "out").rglob("results.json")
    last = json.loads(found.read_text(encoding="utf-8"))["results"]["last"]
    domains = CATALOG[name].domains
    tested = 2 * len(CLASSES[name])  # images of one domain in each miniature's test list
    assert [client["n"] for client in last["clients"]] == [tested] * len(domains)
    content = json.loads((found.parent / "partition.json").read_text(encoding="utf-8"))
    assert [client["domain"] for client in content["clients"]] == list(domains)
