"""FedPFT beside Flower's baseline ``fedpft``: their fit of the mixtures and their head's training.

Their draws come of scikit-learn's generator. Here both sides take the same draws: ours, of the
mixtures that each side has fitted.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from fedvlm.core.rng import stream
from fedvlm.method import mixtures
from parity.authors import in_double, repository
from parity.figures import AUTHORS, Source, Values
from parity.world import DTYPE, Case, World

SOURCE = Source(
    "FedPFT", AUTHORS, "adap/flower", "fdef7afb1dca3030553be302366cfd285ed6632c",
    ("baselines/fedpft/fedpft/utils.py", "baselines/fedpft/fedpft/models.py"),
    equal="trained head and logits after the one round",
    differs="features of our frozen tower on both sides; their mixtures in float64 (there rounded "
            "to 16 bits on the way); one component for each class (from two on, both fits depend "
            "on where they start), no full covariance (of fewer images than channels it has "
            "equal eigenvalues, whose directions, and so the draws, are rounding); the same "
            "draws, order of draws and start at zero on both sides (there scikit-learn's "
            "generator, shuffles and start of PyTorch)",
)
SIZES = (12, 16, 7)  # of five classes: the last client has three of a single image
CASES = {
    kind: Case("FedPFT", rounds=1, sizes=SIZES, loss=False, options={
        "COVARIANCE": kind, "HEAD_LR": 0.01, "HEAD_EPOCHS": 5, "HEAD_BATCH": 8,
    })
    for kind in ("spherical", "diag")
}
STUBS = ("flwr", "flwr.common", "flwr.common.logger", "numpy.typing", "torchvision",
         "torchvision.transforms", "torchvision.models", "transformers")
SEED, ROUND = 1, 1  # of the room's runs
TOL, STEPS = 1e-12, 10_000  # their settings


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their ``learn_gmm`` and ``train``."""
    options = world.case.options
    with torch.no_grad():
        features = world.backbone.encode_image(world.images)
        tests = world.backbone.encode_image(world.tests)
    with repository(folder / "baselines" / "fedpft" / "fedpft", *STUBS):
        utils = in_double(folder / "baselines" / "fedpft" / "fedpft", "utils", "float16")
        models = in_double(folder / "baselines" / "fedpft" / "fedpft", "models")
        drawn, classes = [], list[int]()
        for client, rows in enumerate(world.rows):
            found = utils.learn_gmm(
                features[rows].numpy(), world.labels[rows].numpy(), 1, options["COVARIANCE"], 0,
                TOL, STEPS,
            )
            generator = stream(SEED, "draw", ROUND, client)
            for one in found:
                count = int(one.num_samples)
                share, mean, spread = (
                    torch.from_numpy(v) for v in (one.weights, one.means, one.covariances))
                drawn.append(mixtures.draw_mixture(count, share, mean, spread, generator))
                classes += [int(one.label)] * count
        z, y = torch.cat(drawn), torch.tensor(classes)
        head = nn.Linear(z.shape[1], len(world.names), dtype=DTYPE)
        for value in head.parameters():
            nn.init.zeros_(value)
        optimiser = torch.optim.AdamW(head.parameters(), lr=options["HEAD_LR"])
        order = stream(SEED, "head", ROUND, -1)
        for _ in range(options["HEAD_EPOCHS"]):  # an epoch of theirs, with our order
            batches = [{"img": z[at], "label": y[at]} for at in torch.randperm(
                len(y), generator=order).split(options["HEAD_BATCH"])]
            models.train(head, batches, optimiser, 1, "cpu")
    with torch.no_grad():
        logits = head(tests).expand(len(world.rows), -1, -1)
    return {"shared head.weight": head.weight.detach(), "shared head.bias": head.bias.detach(),
            "logits": logits.clone()}
