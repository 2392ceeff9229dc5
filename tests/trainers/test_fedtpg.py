"""FedTPG: a context for a set of names, in whatever order; with CLASSES own for the client's."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fedvlm.check.world import BASE
from tests.trainers.small_world import batch, method, model, tree


def test_the_network_is_torchs_attention_and_a_geglu() -> None:
    trainer = method("FedTPG", N_CTX=2)
    p = tree(trainer, 1)
    got = trainer.context(model(), p)[0]
    one = {n.removeprefix("text.net."): v[0] for n, v in p.items()}
    d, names = model().embed_dim, model().with_classes(BASE, ("{}",)).anchor("template", 0)
    mha = torch.nn.MultiheadAttention(d, 4, batch_first=True, dtype=torch.float64)
    state = {"in_proj_weight": torch.cat([one[f"attn.{s}.weight"] for s in "qkv"]),
             "in_proj_bias": torch.cat([one[f"attn.{s}.bias"] for s in "qkv"]),
             "out_proj.weight": one["attn.o.weight"], "out_proj.bias": one["attn.o.bias"]}
    mha.load_state_dict(state)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (d,), one[f"norm.{name}.weight"], one[f"norm.{name}.bias"])

    keys = norm(names, "key")
    x = mha(norm(one["queries"], "query"), keys, keys)[0]
    value, gate = (norm(x, "ff") @ one["ff1.weight"].T + one["ff1.bias"]).chunk(2, -1)
    x = x + (value * F.gelu(gate)) @ one["ff2.weight"].T + one["ff2.bias"]
    assert torch.allclose(got, x @ one["out.weight"].T + one["out.bias"], atol=1e-12)
    turned = trainer.context(model().with_classes(BASE[::-1]), p)[0]
    assert torch.allclose(got, turned, atol=1e-12)


def test_own_classes_are_a_model_of_those_names() -> None:
    trainer = method("FedTPG", N_CTX=2, CLASSES="own")
    p, b = tree(trainer), batch()
    b.y.clamp_(max=1)  # the first two classes only
    held = torch.tensor([[True, True, False, False]] * 2)
    few = model().with_classes(BASE[:2])
    want = trainer.loss(few, p, b)
    assert torch.allclose(trainer.own_loss(model(), p, b, held=held), want, atol=1e-9)
