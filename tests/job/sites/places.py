"""Two parties and a coordinator on one machine, with folders of their own; frames in this process.

The clients are those of a demo run, so that the run that sees all is at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from fedvlm.api.run import load
from fedvlm.cli.main import main
from fedvlm.cli.site._export import model_of
from fedvlm.distributed.carriers import Answer
from fedvlm.distributed.site_yaml import read_site_yaml
from fedvlm.distributed.store import SiteStore
from fedvlm.distributed.wire import unpack
from fedvlm.job.sites import parties
from fedvlm.job.sites.resident import Resident
from tests import jobs
from tests.distributed.in_process import InProcess

RULES = """\
site: site.json
images: images
states: states
allow:
  trainers: [APFL, FedTV]
  backbones: [tiny]
  rounds: 5
"""
WORDS = ("--backbone", "tiny", "--rounds", "2", "--num-users", "2", "--local-epochs", "1",
         "FED.ASK.WAIT", "0")
NAMES = ("site0", "site1")


def make(folder: Path, split: str = "0,1", clients: int = 2) -> Path:
    """Write the files of both parties and the coordinator."""
    words = ("--demo", "--partition", "disjoint", "--num-users", str(clients), "--shots", "2")
    assert main(["site", "make", "--split", split, "--to", str(folder), *words]) == 0
    for name in NAMES:
        (folder / name / "site.yaml").write_text(RULES)
    return folder


class Line(InProcess):
    """Both sites, which come up anew with each carrier: all that they know is on their disks.

    Attributes:
        stop: (op, round) after which the coordinator is stopped.
        gone: (site, round) from which on a site does not answer work.
        frames: all that was carried.
    """

    def __init__(
        self, place: Path, stop: tuple[str, int], gone: tuple[str, int],
        sites: Mapping[str, Answer],
    ) -> None:
        super().__init__(sites)
        self.place, self.stop, self.gone = place, stop, gone
        self.frames: list[bytes] = []
        self.logs: list[str] = []
        for name in NAMES if not sites else ():
            self.begin(name)

    def begin(self, name: str) -> None:
        """Begin a site, anew."""
        owner = read_site_yaml(self.place / name / "site.yaml")
        self.answers[name] = Resident(owner, say=self.logs.append).answer

    def open(self, seconds: float) -> None:
        """Be there."""

    def absent(self) -> list[str]:
        """Nobody is."""
        return []

    def close(self) -> None:
        """Be gone."""

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> Mapping[str, bytes | str]:
        heads = {site: unpack(data) for site, data in frames.items()}
        told = {site: (f.op, int(f.values.get("round", 0))) for site, f in heads.items()}
        away, since = self.gone
        lost = [s for s, (op, round_) in told.items() if s == away and op == "work"
                and round_ >= since]
        out: dict[str, bytes | str] = dict(super().ask(
            {s: f for s, f in frames.items() if s not in lost}, seconds
        ))
        self.frames += [*frames.values(), *(v for v in out.values() if isinstance(v, bytes))]
        if self.stop in told.values():
            raise KeyboardInterrupt
        return out | dict.fromkeys(lost, "not connected: connection refused")


def federated(
    place: Path, output: Path, patch: pytest.MonkeyPatch, *more: str,
    stop: tuple[str, int] = ("", 0), gone: tuple[str, int] = ("", 0),
    sites: Mapping[str, Answer] = {},
) -> tuple[int, Line]:
    """Run a coordinator's command; return its exit code and the carrier.

    Args:
        sites: that are there still; by default all begin anew.
    """
    lines: list[Line] = []

    def sites_of(cfg: object) -> Line:
        lines.append(Line(place, stop, gone, sites))
        return lines[-1]

    patch.setattr(parties, "sites_of", sites_of)
    code = main([
        "run", "--engine", "sites", "--sites-at", "a,b",
        "--site-file", str(place / "server" / "site.json"),
        "--images", str(place / "server" / "images"), "--output-dir", str(output), *WORDS, *more,
    ])
    return code, lines[0]


def rows(place: Path, output: Path) -> dict[str, torch.Tensor]:
    """Return the clients' tensors at the sites, named as in a local state; last round only."""
    run = (jobs.folder(output) / parties.PLACE / parties.NAME).read_text().strip()
    found = {}
    for name in NAMES:
        store = SiteStore(place / name / "states", run, torch.device("cpu"))
        newest = max(version for _, version in store.rows())
        for client, version in store.rows():
            if version == newest:
                ((_, state),) = store.get([client], [version])
                found |= {f"clients|{client}|{version}|{slot}|{leaf}": v[0]
                          for slot, tree in state.items() for leaf, v in tree.items()}
    return found


def own_and_global(
    yaml: Path, output: Path, client: int
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the tensors of a client's model, made at its site, and of the run's global model.

    The model reaches what the run recorded for the client.
    """
    run = (jobs.folder(output) / parties.PLACE / parties.NAME).read_text().strip()
    trained, _ = model_of(read_site_yaml(yaml), run, client, {})
    (row,) = [r for r in jobs.records(output)[-1]["clients"] if r["client"] == client]
    assert trained.facts.metrics == {"accuracy": row["accuracy"]}
    return trained.params, load(jobs.folder(output)).global_model.params
