"""Attention over trees: torch's own module, client by client."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedvlm.core.errors import FedvlmError
from fedvlm.models.adapt.attention import attend, attention_tree

K, WIDTH, SOURCE, HEADS = 3, 12, 8, 3


def clients(source: int) -> dict[str, torch.Tensor]:
    gen = torch.Generator().manual_seed(0)
    trees = [attention_tree("gate", WIDTH, gen, source=source) for _ in range(K)]
    for tree in trees:
        for name in tree:
            if name.endswith("bias"):
                tree[name] = torch.randn(WIDTH, generator=gen)
    return {n: torch.stack([t[n] for t in trees]).double().requires_grad_() for n in trees[0]}


def module_of(p: dict[str, torch.Tensor], k: int, source: int) -> nn.MultiheadAttention:
    one = nn.MultiheadAttention(
        WIDTH, HEADS, kdim=source or WIDTH, vdim=source or WIDTH, batch_first=True
    ).double()
    q, key, v, o = (p[f"gate.{s}.weight"][k] for s in "qkvo")
    state = {"out_proj.weight": o, "out_proj.bias": p["gate.o.bias"][k],
             "in_proj_bias": torch.cat([p[f"gate.{s}.bias"][k] for s in "qkv"])}
    if source:
        state |= {"q_proj_weight": q, "k_proj_weight": key, "v_proj_weight": v}
    else:
        state["in_proj_weight"] = torch.cat([q, key, v])
    one.load_state_dict(state)
    return one


@pytest.mark.parametrize("source", [0, SOURCE])
def test_clients_stacked_are_torchs_modules_one_by_one(source: int) -> None:
    p = clients(source)
    gen = torch.Generator().manual_seed(1)
    q = torch.randn(K, 2, 5, WIDTH, generator=gen, dtype=torch.float64)
    kv = torch.randn(K, 1, 4, source or WIDTH, generator=gen, dtype=torch.float64)
    mask = torch.tensor([True, True, False, True])
    out = attend(p, "gate", HEADS, q, kv, mask.expand(5, 4))
    (slope,) = torch.autograd.grad(out[1].square().sum(), p["gate.k.weight"])
    for k in range(K):
        one = module_of(p, k, source)
        want, _ = one(q[k], kv[k].expand(2, -1, -1), kv[k].expand(2, -1, -1),
                      attn_mask=~mask.expand(5, 4))
        torch.testing.assert_close(out[k], want)
        assert bool(slope[k].any()) is (k == 1)
    without = {n: v for n, v in p.items() if not n.endswith("bias")}
    assert attend(without, "gate", HEADS, q[:, 0], kv[:, 0]).shape == (K, 5, WIDTH)


def test_the_start_is_torchs() -> None:
    gen, wide = torch.Generator().manual_seed(0), 64
    tree = attention_tree("a", wide, gen, bias=False)
    assert list(tree) == [f"a.{s}.weight" for s in "qkvo"]
    torch.manual_seed(0)
    like = nn.MultiheadAttention(wide, 4)
    theirs = [*like.in_proj_weight.split(wide), like.out_proj.weight]
    for ours, one in zip(tree.values(), theirs, strict=True):
        assert float(ours.abs().max()) == pytest.approx(float(one.detach().abs().max()), rel=0.01)
    with pytest.raises(FedvlmError, match="width 64 cannot have 5 heads"):
        attend({}, "a", 5, torch.zeros(1, 1, wide), torch.zeros(1, 1, wide))
