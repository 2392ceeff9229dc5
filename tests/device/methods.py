"""A method's whole job on the pretend device, small; and what of it is bounded."""

from __future__ import annotations

import re
from pathlib import Path

from tests import jobs
from tests.device.card import pretend_card
from tests.device.tally import Tally

SMALL = ("--device", "cuda", "--num-users", "3", "--batch-size", "2", "--eval-every", "2")
# A third of a small run's kernels are its baselines', the same ones for every method.
ALONE = ("TEST.REFERENCES", "False")
MORE = {  # what two epochs need
    "FedDecomp": ("--local-epochs", "2"), "FedRep": ("--local-epochs", "2"),
}
TEXTS = re.compile(r".* fedvlm/models/(towers/(prompts|layouts|packed_text|text_path)|vlmodel|"
                   r"backbone)\.py:\d+")
# Layouts of texts are made on the host. In a step only where these ask for them.
ASKS_FOR_TEXTS = {
    "FedTPG": "each step has classes of its own, and so a layout",
    "FedProto": "the first step is the first text pass of the run",
    "Per-FedAvg": "the first step is the first text pass of the run",
}
# More than three reads in a round of one chunk, and why.
READS = {
    "FedALA": "one for each pass that learns the mixing weights, until they settle",
    "FedFomo": "which models are nearest decides what is sent: one for each client",
    "HetLoRA": "ranks are pruned by norms: one for each client and tensor",
    "FedProto": "counts and prototypes of classes",
    "FedPFT": "mixtures are fitted, and drawn from, on the host",
    "pFedMoAP": "the clients whose contexts the server has",
}


def trainer_names() -> list[str]:
    """Return the names of all methods."""
    found = (re.search(r'@TRAINER_REGISTRY\.register\("([^"]+)"', path.read_text())
             for path in sorted((jobs.REPOSITORY / "trainers").glob("*.py")))
    return [match[1] for match in found if match]


def on_card(output: Path, method: str, *words: str) -> Tally:
    """Run a method's job on the device; it ends well."""
    with pretend_card() as tally:
        assert jobs.run(output, "--trainer", method, *SMALL, *MORE.get(method, ()), *words) == 0
    return tally


def check_bounds(method: str, tally: Tally, but: str = "", pixels: bool = False) -> None:
    """No tensors of two devices, no waiting in a step, each operation in a fixed order.

    Args:
        pixels: each batch is copied.
        but: a file whose reads in a round are not counted.
    """
    assert not tally.mixed, f"CUDA would stop here: {dict(tally.mixed)}"
    assert not tally.unsure, f"no deterministic kernel: {dict(tally.unsure)}"
    for what in (tally.reads, tally.blocking):
        found = tally.during(what, "step", "fetch")
        if method in ASKS_FOR_TEXTS:
            found = {k: n for k, n in found.items() if not TEXTS.fullmatch(k)}
        assert not found, f"the host waits in a local step or for its batch: {found}"
    copies = tally.during(tally.copies, "fetch")  # cached features: a batch is a gather there
    assert sum(copies.values()) <= (tally.steps if pixels else 0), copies
    reads = tally.during(tally.reads, "work", "round")
    reads = {place: n for place, n in reads.items() if not but or but not in place}
    if method not in READS:
        assert sum(reads.values()) <= 3 * tally.rounds, reads
