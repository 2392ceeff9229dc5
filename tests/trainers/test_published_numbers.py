"""How many numbers train and travel at ViT-B/16's shapes: the papers', without its weights."""

from __future__ import annotations

from typing import Any

import pytest

from fedvlm.recipes.counts import Counts, count
from tests.trainers.small_world import method

CLASSES = 100


@pytest.mark.parametrize(
    ("name", "options", "trained", "sent"),
    [
        ("FedPGP", {}, 12_416, 8_192),
        ("FedPGP", {"NUM_PROMPT": 2}, 24_832, 16_384),  # FedMGP, table 3: 24.8k, 16.4k
        ("DP-FPL", {}, 12_416 + 8_192, 8_192),  # 8.2k sent; the residual is not trained
        ("FedOTP", {}, 16_384, 8_192),  # 16.4k, 8.2k
        ("PromptFolio", {}, 16_384, 8_192),  # 16.4k, 8.2k
        ("FedTPG", {}, 4_206_080, 4_206_080),
        ("FedTPG", {"N_CTX": 8}, 4_208_128, 4_208_128),  # 4208.1k
        ("FedMGP", {"CTX_INIT": ""}, 12_800, 5_120),  # 12.8k, 5.1k
        ("FedCLIP", {}, 525_312, 525_312),  # 5.3e5
        ("MaPLe", {"CTX_INIT": ""}, 3_555_072, 3_555_072),  # 3.55 M
        ("PromptSRC", {"CTX_INIT": ""}, 46_080, 46_080),
        ("VPT", {}, 27_648, 27_648),
        ("VPT", {"DEPTH": 1}, 3_072, 3_072),
        ("FedPHA", {}, 16_384, 8_192),
        ("pFedMoAP", {}, 8_192 + 66_048, 8_192),
        ("CoCoOp", {"CTX_INIT": ""}, 35_360, 35_360),
        ("KgCoOp", {"CTX_INIT": ""}, 2_048, 2_048),
        ("ProGrad", {}, 8_192, 8_192),
        ("FedDDA", {}, 267_776, 133_120),
        ("CLIP-Adapter", {}, 131_072, 0),
        ("Tip-Adapter-F", {}, 262_144, 0),  # places for 512 images
        ("pFedMMA", {}, 674_560, 8_448),
        ("AFL", {}, 51_200, 51_200),  # what comes back; the server solves for it
        ("FedPFT", {}, 51_300, 51_300),  # what comes back; the server trains it
        ("FedMedCLIP", {}, 526_336 + 843_976 + 3_073, 526_336),  # 3,073 follow
        ("TRIP", {}, 32_768, 32_768),
        ("TRIP", {"N_CTX": 32}, 65_536, 65_536),  # its README: 0.065M
        ("FedMVP", {}, 9_845_760, 9_845_760),
        ("HetLoRA", {}, 294_912, 294_912),  # of a client with the whole rank
        ("FedDPA", {}, 589_824, 294_912),
    ],
)  # fmt: skip
def test_numbers_at_vit_b16(name: str, options: dict[str, Any], trained: int, sent: int) -> None:
    assert count(method(name, **options), "ViT-B/16", CLASSES) == Counts(trained, sent)
