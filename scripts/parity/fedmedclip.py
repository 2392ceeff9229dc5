"""FedMedCLIP beside its authors' ``utils/training.py`` and ``nets/models.py``: their steps."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from parity.authors import FrozenCLIP, Names, repository, shell
from parity.fedclip import gradients
from parity.figures import AUTHORS, Source, Values
from parity.world import DTYPE, Case, World

SOURCE = Source(
    "FedMedCLIP", AUTHORS, "AIPMLab/FedMedCLIP", "df4bf027e0e879b67fbc5fd8d2a7c63641d47976",
    ("utils/training.py", "utils/testing.py", "utils/aggregation.py", "nets/models.py"),
    differs="features of our frozen towers on both sides; float64 in place of float32; one rate "
            "for both parts; their sum of the clients without the 16 bits of the transfer; the "
            "mixture of both outputs, which stands inside their loop over noisy test images, is "
            "written out here around their entropy; of a bias in front of a norm over the "
            "batch the gradient is 0 but for rounding and is not compared",
)
SIZES = (16, 12, 9)  # of 2 or 3 images a norm's gradient is mostly rounding
CASES = {"their AdamW": Case(
    "FedMedCLIP", sizes=SIZES, optimiser="adamw", rate=0.003, decay=0.02,
    details={"betas": (0.9, 0.98), "eps": 1e-6},
)}
STUBS = ("open_clip", "loraclip", "timm", "tqdm", "adaptation", "nets.PromptCLIP",
         "nets.LinearProbeV2", "nets.CoCoOpCLIP", "sklearn.metrics", "utils.Plots", "ROC_DCA",
         "opacus")
PARTS = ("weight", "bias", "threshold")
WORDS = "a picture of a {}"


def doubled(x: Tensor) -> Tensor:
    """Return numbers as they are, and what is true or false as numbers."""
    return x if x.is_floating_point() else x.double()


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their ``train``, ``communication`` and entropy."""
    case, clip = world.case, FrozenCLIP(world)
    with repository(folder, *STUBS) as load, patch.object(Tensor, "float", doubled):
        clip.install()
        for name in ("utils.Plots", "ROC_DCA"):
            sys.modules[name] = shell(name)
        sys.modules["tqdm"].tqdm = lambda x: x  # type: ignore[attr-defined]
        sys.modules["adaptation"].LMMDLoss = lambda *a: None  # type: ignore[attr-defined]
        networks, training = load("nets.models"), load("utils.training")
        labels = [WORDS.format(name) for name in world.names]
        texts = clip.backbone.tokenize(labels)
        models = [client(networks.ClipModelat, clip, world, labels) for _ in range(4)]
        heads = [networks.MLP(case.embed, case.embed, len(labels)).double() for _ in range(4)]
        tables = [Names(tensors(*both)) for both in zip(models, heads, strict=True)]
        pair = {id(m): h for m, h in zip(models, heads, strict=True)}
        args = SimpleNamespace(method="attn_mlp", num_classes=len(labels), test_envs=[3],
                               mode="FedAtImg", aggmode="att", index=0)

        def fit(model: Any, rows: Tensor, optimiser: Any) -> None:
            y = world.labels[rows]
            training.train(args, model, [(world.images[rows], texts[y], y)], optimiser, "cpu", [],
                           None, None, None, pair[id(model)])

        found = gradients(world, fit, tables[0], models[0])
        for i in (1, 2, 3):
            del found[f"grad head.fc{i}.bias"]
        for table in tables:
            table.put(world.start)
        for head in heads:
            head.bn.num_batches_tracked.zero_()
        for _ in range(case.rounds):
            for table, model, rows in zip(tables, models, world.rows, strict=False):
                leaves = [v for v in table.leaves() if v.requires_grad]
                optimiser = torch.optim.AdamW(leaves, case.rate, weight_decay=case.decay,
                                              **case.details)
                for _ in range(case.epochs):
                    fit(model, torch.from_numpy(rows), optimiser)
            with patch.object(torch, "float32", DTYPE):  # their sum is made in it
                load("utils.aggregation").communication(args, models[3], models, [1 / 3] * 3)
        entropy = load("utils.testing").calculate_entropy_single
        with torch.no_grad():
            t = clip.encode_text(texts)
            found["logits"] = torch.stack([
                mixture(clip, m, h.eval(), t, world.tests, entropy)
                for m, h in zip(models[:3], heads[:3], strict=True)])
        for k, table in enumerate(tables[:3]):
            for name, value in table.get().items():
                shared = name.startswith("image.")
                found[f"shared {name}" if shared else f"client{k} {name}"] = value.clone()
            found[f"client{k} head.batches"] = heads[k].bn.num_batches_tracked.double()
        return found


def tensors(model: Any, head: Any) -> dict[str, Tensor]:
    """Return their tensors under our names."""
    masked = {"image.adapter.fc1": model.fea_attn[0], "image.adapter.fc2": model.fea_attn[3],
              "head.fc1": head.linear, "head.fc2": head.linear2, "head.fc3": head.linear3,
              "head.fc4": head.fc4}
    table = {f"{n}.{part}": getattr(m, part) for n, m in masked.items() for part in PARTS}
    for name, norm in (("norm1", head.bn), ("norm2", head.bn2), ("norm3", head.bn3)):
        table |= {f"head.{name}.weight": norm.weight, f"head.{name}.bias": norm.bias,
                  f"head.{name}.mean": norm.running_mean, f"head.{name}.var": norm.running_var}
    return table


def client(kind: Any, clip: FrozenCLIP, world: World, labels: list[str]) -> Any:
    """Return their model over our towers, with an attention as they make it."""
    model = kind.__new__(kind)
    torch.nn.Module.__init__(model)
    model.model, model.device, model.preprocess = clip, "cpu", None
    model.freezepy, model.attention, model.labels = False, True, labels
    model.initdgatal([(world.tests, None, world.labels)])
    model.fea_attn.double()
    return model


def mixture(clip: FrozenCLIP, model: Any, head: Any, t: Tensor, images: Tensor, entropy: Any
            ) -> Tensor:
    """Return log probabilities ``[n, C]``: both outputs by their inverse entropies."""
    z = clip.encode_image(images)
    z = z * model.fea_attn(z)
    z, t = (x / x.norm(dim=-1, keepdim=True) for x in (z, t))
    near, own = (clip.logit_scale.exp() * z @ t.T).softmax(-1), head(z).softmax(-1)
    one, two = (1 / (entropy(v) + 1e-8) for v in (near, own))
    share = (two / (one + two)).unsqueeze(1)
    return ((1 - share) * near + share * own).log()
