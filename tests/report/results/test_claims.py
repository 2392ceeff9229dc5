"""Claims: the sentence, its lane, and what runs say to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedvlm.core.errors import ConfigError
from fedvlm.federation.cards import card, fields, trainer_files
from fedvlm.report.collect import collect
from fedvlm.report.results.claims import (
    NOT_RUN,
    REFUTED,
    SUPPORTED,
    UNDERPOWERED,
    Claim,
    answers,
    read_claim,
)
from tests.jobs import REPOSITORY
from tests.report.table_runs import reference, write_seeds


def test_every_card_claims_what_can_be_tested() -> None:
    lanes = {Path(yaml.safe_load(path.read_text())["output_dir"]).name
             for path in (REPOSITORY / "configs" / "results").glob("*.yaml")}
    claims = {stem: read_claim(fields(card(path))["Claim"])
              for stem, path in trainer_files().items()}
    assert {claim.lane for claim in claims.values() if claim} <= lanes
    assert sorted(stem for stem, claim in claims.items() if claim is None) == [
        "feddpa", "hetlora", "local_only", "zeroshot",
    ]
    assert claims["ditto"] == Claim("personal_worst", "FedAvg", "dirichlet")


def test_a_sentence_of_another_form_is_refused() -> None:
    assert read_claim("none.") is None
    with pytest.raises(ConfigError, match="'It is better' is no claim; a card says 'METRIC is"):
        read_claim("It is better")


@pytest.mark.parametrize(("values", "verdict"), [
    ([61.0, 62.0, 63.5], SUPPORTED), ([41.0, 42.0, 43.5], REFUTED),
    ([50.1, 51.0, 51.9], REFUTED), ([50.0, 51.0, 52.0], REFUTED),
    ([40.0, 51.0, 62.0], UNDERPOWERED),
])
def test_the_interval_answers(tmp_path: Path, values: list[float], verdict: str) -> None:
    write_seeds(tmp_path, "FedAvg", [50.0, 51.0, 52.0], peft="head")
    write_seeds(tmp_path, "FedAvg", [90.0, 90.0, 90.0], peft="prompt")
    write_seeds(tmp_path, "Ditto", values, peft="head")
    (answer,) = answers("Ditto", Claim("personal", "FedAvg", "x"), collect([tmp_path]).runs)
    assert (answer.verdict, answer.rival) == (verdict, "FedAvg [head]")


def test_a_reference_may_be_the_rival_and_what_did_not_run_says_so(tmp_path: Path) -> None:
    sections = {"references": {"zero_shot": reference("alone", 3, 4)}}
    write_seeds(tmp_path, "VPT", [60.0, 61.0, 62.0], sections=sections)
    runs = collect([tmp_path]).runs
    (answer,) = answers("VPT", Claim("personal", "zero-shot", "x"), runs)
    assert answer.verdict == SUPPORTED
    assert answer.difference is not None and answer.difference.mean == pytest.approx(26.0)
    assert [a.verdict for a in answers("VPT", Claim("personal", "MaPLe", "x"), runs)] == [NOT_RUN]
    assert [a.verdict for a in answers("FedTV", Claim("personal", "VPT", "x"), runs)] == [NOT_RUN]
