"""Hermes: pruning and merging of units on the real class, and the defects of its port."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedvlm.check.compare import same_fed
from fedvlm.check.world import CheckWorld, Setup
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.trees import Tree
from fedvlm.federation.aggregation.updates import Updates, join_updates
from fedvlm.federation.batches import Batch, IndexSplit
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.rounds import Federation, FedState, RoundFinished
from fedvlm.federation.trainer import Trainer
from tests.federation.toys import quadratic
from tests.trainers.toys import config, leaves

HERMES = load_trainer("Hermes")
HOME = sys.modules[HERMES.__module__]
DOWN, UP = "image.adapter.down", "image.adapter.up"
ALWAYS = {"ACC_MODE": "abs", "ACC_THR": 0.0, "WARMUP": 0}
NEVER = {"ACC_MODE": "abs", "ACC_THR": 1.0, "WARMUP": 0}
FEATURE = CheckWorld(["PEFT.TEXT", "prompt", "PEFT.VISUAL", "feature", "PEFT.WIDTH", "10"])


class Units:
    """Ten hidden channels of an adapter, pulled to a point of each client's; any accuracy."""

    accurate = 0.5

    def trainables(self, model: Any, generator: torch.Generator) -> Tree:
        draw = torch.Generator().manual_seed(0)
        return {
            DOWN: torch.randn(10, 3, generator=draw).double(),
            UP: torch.randn(3, 10, generator=draw).double(),
            "text.ctx": torch.randn(2, 3, generator=draw).double(),
        }

    def loss(self, model: Any, p: Tree, b: Batch) -> Tensor:
        gaps = [(v - b.x["b"][:, :1, None]).pow(2).mean((1, 2)) for v in p.values()]
        return torch.stack(gaps).sum(0)

    def accuracy(self, ctx: Any, w: Tree) -> Tensor:
        return torch.full((1,), self.accurate, dtype=torch.float64)


def units(options: dict[str, Any], rounds: int = 4, kind: type[Trainer] = HERMES) -> Federation:
    made = type("UnitHermes", (Units, kind), {})
    own = options if kind is HERMES else {}
    return quadratic(made(config(kind, own)), rounds, momentum=0.9, epochs=2, lr=1.0, val=1)


def history(fed: Federation) -> list[Any]:
    """Return every round's event, with the state after it as ``state``."""
    seen: list[RoundFinished] = []
    states: list[FedState] = []
    fed.subscribers.append(lambda e: seen.append(e) if isinstance(e, RoundFinished) else None)
    fed.savers.append(states.append)
    fed.run()
    return [
        SimpleNamespace(**vars(event), state=state)
        for event, state in zip(seen, states, strict=True)
    ]


# ---- schedule and masks -----------------------------------------------------------------------
@pytest.mark.parametrize("overlap", ["intersection", "coverage"])
def test_schedule_and_dead_entries(overlap: str) -> None:
    """10 units, rate 0.2, target 0.5: 20, 40, 50, 50 %; nothing dead ever grows again."""
    found, dead = [], []
    fed = units(ALWAYS | {"OVERLAP": overlap})
    for event in history(fed)[1:]:
        sent = event.updates.messages()
        for client, state in event.state.clients.items():
            gone = state["mask"]["image.adapter"] == 0
            down = fed.downloads(event.state, event.round, [client])[client]
            for tree in (down, sent[client]):
                assert float(tree[DOWN][gone].abs().max()) == 0.0
                assert float(tree[UP][:, gone].abs().max()) == 0.0
            assert float(sent[client][DOWN][~gone].abs().min()) > 0
            assert bool((sent[client]["text.ctx"] != 0).all())  # exempt
            found.append(float(state["prune"]["pruned"]))
            dead.append(int(gone.sum()))
    assert found == pytest.approx([0.2, 0.2, 0.4, 0.4, 0.5, 0.5, 0.5, 0.5], abs=1e-12)
    assert dead == [2, 2, 4, 4, 5, 5, 5, 5]


@pytest.mark.parametrize(("rank", "dead"), [(8, [2, 3, 4]), (10, [2, 4, 5])])
def test_rounding_of_the_cumulated_share(rank: int, dead: list[int]) -> None:
    mask, score = torch.ones(1, rank), torch.arange(float(rank), 0, -1)[None]
    for share, count in zip((0.2, 0.4, 0.5), dead, strict=True):
        before, mask = mask, HOME.kill(mask, score, torch.tensor([share]))
        assert int((mask == 0).sum()) == count
        assert bool((mask <= before).all())
        assert mask[0].tolist() == [1.0] * (rank - count) + [0.0] * count  # the lowest go


def test_dead_units_stay_dead_whatever_their_score() -> None:
    mask = torch.tensor([[1.0, 0.0, 1.0, 1.0]])
    score = torch.tensor([[0.1, 9.0, 0.3, 0.2]])
    assert HOME.kill(mask, score, torch.tensor([0.5])).tolist() == [[0.0, 0.0, 1.0, 1.0]]


@pytest.mark.parametrize(("warmup", "dead"), [(1, [0, 2, 4]), (2, [0, 0, 2])])
def test_warm_up(warmup: int, dead: list[int]) -> None:
    events = history(units(ALWAYS | {"WARMUP": warmup}, 3))[1:]
    assert [int((e.state.clients[0]["mask"]["image.adapter"] == 0).sum()) for e in events] == dead


def test_relative_bar_is_of_the_best_so_far() -> None:
    fed = units({"ACC_MODE": "rel", "ACC_THR": 0.9, "WARMUP": 0}, 4)
    state, found = fed.start(), []
    for round_, accurate in enumerate((0.5, 0.44, 0.46, 0.6), 1):
        type(fed.trainer).accurate = accurate
        state = fed.round(state, round_)
        found.append(float(state.clients[0]["prune"]["pruned"]))
    assert found == pytest.approx([0.2, 0.2, 0.4, 0.5])
    assert float(state.clients[0]["prune"]["best"]) == 0.6


@pytest.mark.parametrize("overlap", ["intersection", "coverage"])
def test_below_the_bar_it_is_fedavg(overlap: str) -> None:
    ours = history(units(NEVER | {"OVERLAP": overlap}))
    plain = history(units({}, kind=load_trainer("FedAvg")))
    for mine, other in zip(ours, plain, strict=True):
        for name, value in other.state.server["w"].items():
            gap = (mine.state.server["w"][name] - value).abs().max()
            assert float(gap) <= (0.0 if overlap == "intersection" else 1e-14)
            for state in mine.state.clients.values():
                assert all(bool((m == 1).all()) for m in state["mask"].values())
    assert ours[-1].report["overlap_fraction"] == 1.0


# ---- aggregation ------------------------------------------------------------------------------
def update(client: int, values: list[float], mask: list[int], weight: float = 1.0) -> Updates:
    row = torch.tensor([values], dtype=torch.float64)
    keep = {"mask.image.adapter": torch.tensor([mask]) > 0}
    params = {DOWN: row[..., None], UP: row[:, None], "text.ctx": row}
    return Updates((client,), params, torch.tensor([weight]).double(), keep)


@pytest.mark.parametrize(
    ("rule", "whole"), [("intersection", [3, 9, 9, 9]), ("coverage", [3, 2, 7, 9])]
)
def test_both_overlap_rules(rule: str, whole: list[float]) -> None:
    updates = join_updates(
        [update(0, [1, 2, 0, 0], [1, 1, 0, 0]), update(1, [5, 0, 7, 0], [1, 0, 1, 0])]
    )
    nine = {n: torch.full_like(v[0], 9.0) for n, v in updates.params.items()}
    server, each = HOME.average(updates, nine, rule)
    own = [{n: v[k] for n, v in each.items()} for k in (0, 1)]
    for name in (DOWN, UP):  # rows of one, columns of the other
        assert server[name].flatten().tolist() == whole
        assert own[0][name].flatten().tolist() == [3, 2, 0, 0]
        assert own[1][name].flatten().tolist() == [3, 0, 7, 0]
    for tree in (server, own[0], own[1]):  # not prunable: the plain mean
        assert tree["text.ctx"].tolist() == [3, 1, 3.5, 0]


def test_coverage_weighs_by_samples() -> None:
    updates = join_updates(
        [update(0, [1, 2, 0, 0], [1, 1, 0, 0]), update(1, [5, 4, 0, 0], [1, 1, 0, 0], 3.0)]
    )
    first = {n: v[0] for n, v in updates.params.items()}
    server, _ = HOME.average(updates, first, "coverage")
    assert server[DOWN].flatten().tolist() == pytest.approx([4.0, 3.5, 0, 0])


def test_overlap_is_reported_and_small_ones_are_warned_of() -> None:
    some = join_updates([update(0, [1] * 4, [1, 1, 0, 0]), update(1, [1] * 4, [1, 0, 1, 0])])
    report = HOME.overlap(some)
    assert report == {"overlap_fraction": 0.25, "pruned": {"0": 0.5, "1": 0.5}}
    none = join_updates([update(0, [1] * 4, [1, 1, 0, 0]), update(1, [1] * 4, [0, 0, 1, 1])])
    assert "OVERLAP coverage" in HOME.overlap(none)["warning"]


def test_masks_are_read_and_each_client_gets_its_own_model() -> None:
    """The port's list of masked layers is empty: all is averaged and nobody has an own model."""
    fed = units(ALWAYS)
    last = history(fed)[-1]
    masks = [s["mask"]["image.adapter"] for s in last.state.clients.values()]
    assert not torch.equal(*masks)
    down = fed.downloads(last.state, last.round + 1, [0, 1])
    first, second = down[0], down[1]
    alone = (masks[0] > 0) & (masks[1] == 0)
    assert bool((first[DOWN][alone] != 0).all()) and bool((second[DOWN][alone] == 0).all())
    kept = (masks[0] > 0) & (masks[1] > 0)
    assert torch.equal(first[DOWN][kept], second[DOWN][kept])
    mean = last.updates.params[DOWN].sum(0)[kept] / 2
    assert torch.allclose(first[DOWN][kept], mean, atol=1e-15)
    assert set(last.updates.params) == set(last.state.server["w"])  # no weight_orig
    assert set(last.state.server) == {"w"} and set(last.state.held) == {0, 1}


def test_pruned_units_are_neither_sent_nor_counted() -> None:
    """Ten units of 3 numbers, 8 bytes each, and 4 for an index; the mask a byte a unit."""
    for event in history(units(ALWAYS)):
        for client, size in event.bytes_up.items():
            left = int(event.updates.extras["mask.image.adapter"].sum(1)[client])
            rows = left * (3 * 8 + 4)
            assert size == {DOWN: rows, UP: rows, "text.ctx": 48, "mask.image.adapter": 10}
            sent = event.updates.messages()[client]
            assert int(sent[DOWN].any(1).sum()) == int(sent[UP].any(0).sum()) == left
    assert left == 5


def test_a_unit_that_was_not_sent_is_nobodys_own() -> None:
    """It arrives as its client received it, and is zero in what the server keeps of it."""
    one = update(0, [1, 2, 6, 6], [1, 1, 0, 0])
    some = join_updates([one, update(1, [5, 6, 7, 6], [1, 0, 1, 0])])
    for rule in ("intersection", "coverage"):
        nine = {n: torch.full_like(v[0], 9.0) for n, v in some.params.items()}
        _, each = HOME.average(some, nine, rule)
        assert each[DOWN][..., 0].tolist() == [[3, 2, 0, 0], [3, 0, 7, 0]]


# ---- units ------------------------------------------------------------------------------------
def test_score_is_what_a_component_adds() -> None:
    draw = torch.Generator().manual_seed(1)
    a, b = "image.lora.3.q.A", "image.lora.3.q.B"
    tree = {a: torch.randn(4, 7, generator=draw).double(),
            b: torch.randn(5, 4, generator=draw).double()}
    score = HOME.scores(tree)["image.lora.3.q"]
    for j in range(4):
        outer = torch.linalg.matrix_norm(torch.outer(tree[b][:, j], tree[a][j]))
        mask = torch.ones(4).double()
        mask[j] = 0
        left = HOME.apply_mask(tree, {"image.lora.3.q": mask})
        assert left[a][j].abs().max() == 0 and left[b][:, j].abs().max() == 0
        gone = torch.linalg.matrix_norm(tree[b] @ tree[a] - left[b] @ left[a])
        assert float(score[j]) == pytest.approx(float(outer), abs=1e-14)
        assert float(gone) == pytest.approx(float(outer), abs=1e-14)


def test_which_tensors_have_units() -> None:
    names = [
        "image.adapter.3.mlp.down.weight", "image.adapter.3.mlp.down.bias",
        "image.adapter.3.mlp.up.weight", "image.adapter.3.mlp.up.bias",
        "image.adapter.3.mlp.ln.weight", "text.lora.0.v.A", "text.lora.0.v.B", "text.ctx",
        "head.weight", DOWN, UP,
    ]
    assert HOME.sites(dict.fromkeys(names, torch.zeros(1))) == {
        "image.adapter.3.mlp": names[:3], "text.lora.0.v": names[5:7], "image.adapter": [DOWN, UP],
    }


@pytest.mark.parametrize("visual", ["lora", "adapter", "feature"])
def test_every_kind_of_unit_is_pruned_in_a_run(visual: str) -> None:
    """A-row and B-column masks agree; pruned LoRA components are zero on both sides."""
    world = CheckWorld(["PEFT.TEXT", "none", "PEFT.VISUAL", visual, "PEFT.WIDTH", "10"])
    setup = Setup(opts=ALWAYS, rounds=3, pixels=True, splits=world.splits[:2])
    run = world.record(HERMES, setup)
    for client, sent in run.events[-1].updates.messages().items():
        own = run.states[-1].clients[client]
        assert own["mask"].keys() == HOME.sites(sent).keys() != set()
        for site, names in HOME.sites(sent).items():
            gone = own["mask"][site] == 0
            assert int(gone.sum()) == len(gone) // 2
            dead = [v for v in names if HOME.unit(v)[0][1] is not HOME.ENTRIES]
            rows = [sent[n].movedim(0 if HOME.unit(n)[0][1] is HOME.ROWS else -1, 0)
                    for n in dead]
            assert len(rows) == 2 and all(not bool(r[gone].any()) for r in rows)
            assert all(bool(r[~gone].any(-1).all()) for r in rows)


def test_nothing_to_prune_is_refused() -> None:
    with pytest.raises(ConfigError, match="PEFT.VISUAL feature"):
        CheckWorld(["PEFT.TEXT", "prompt", "PEFT.VISUAL", "none"]).federation(HERMES)


# ---- validation -------------------------------------------------------------------------------
def test_the_decision_sees_validation_images_only() -> None:
    """Other test images change nothing; other validation labels can."""
    own = {"ACC_MODE": "abs", "ACC_THR": 0.99, "WARMUP": 0}
    shares = list(FEATURE.splits[:2])
    blank = [replace(s, test=np.zeros(0, np.int64)) for s in shares]
    one, other = (
        FEATURE.record(HERMES, Setup(opts=own, rounds=2, splits=s)).states[-1]
        for s in (shares, blank)
    )
    assert all(torch.equal(v, dict(leaves(other))[n]) for n, v in leaves(one))
    fed = FEATURE.federation(HERMES, Setup(opts=own))
    ctx = fed.context([0])
    p = {n: v[None] for n, v in fed.p0.items()}
    index = torch.as_tensor(FEATURE.splits[0].val)
    logits = fed.trainer.predict(fed.model, p, {"features": FEATURE.features[index][None]})
    right = (logits[0].argmax(-1) == FEATURE.labels[index]).double().mean()
    assert fed.trainer.accuracy(ctx, p).tolist() == [float(right)]


def empty(share: IndexSplit) -> IndexSplit:
    return replace(share, val=np.zeros(0, np.int64))


def test_a_client_without_validation_images_never_prunes() -> None:
    shares = [FEATURE.splits[0], empty(FEATURE.splits[1])]
    run = FEATURE.record(HERMES, Setup(opts=ALWAYS, splits=shares))
    dead = [int((run.states[-1].clients[c]["mask"]["image.adapter"] == 0).sum()) for c in (0, 1)]
    assert dead == [5, 0]
    assert run.events[-1].report["without_validation"] == [1]


def test_no_validation_images_at_all_is_refused() -> None:
    shares = [empty(s) for s in FEATURE.splits]
    with pytest.raises(DataError, match="VAL_SHOTS"):
        FEATURE.record(HERMES, Setup(opts=ALWAYS, splits=shares))


def test_a_share_of_the_training_images_decides_where_there_are_no_others() -> None:
    """What is held out is not trained on; who has one image of each class holds none out."""
    index = FEATURE.splits[0].train
    _, first = np.unique(FEATURE.labels[index], return_index=True)
    shares = [empty(FEATURE.splits[0]), empty(replace(FEATURE.splits[0], train=index[first]))]
    own = {"ACC_MODE": "rel", "WARMUP": 0, "HOLD_OUT": 0.25}
    run = FEATURE.record(HERMES, Setup(opts=own, splits=shares))
    dead = [int((c["mask"]["image.adapter"] == 0).sum()) for c in run.states[-1].clients.values()]
    assert dead[0] > 0 and dead[1] == 0
    assert "without_validation" not in run.events[-1].report
    fed = FEATURE.federation(HERMES, Setup(opts=own, splits=shares))
    assert fed.trainer.extra_data == "" and fed.context([0]).whole("val") is None
    part = fed.context([0]).subset("fit", 0.25)
    held, trained = part.whole("val"), part.whole("train")
    assert held is not None and trained is not None
    assert held.y.shape[1] + trained.y.shape[1] == len(index) and held.y.shape[1] > 0


def test_final_fine_tuning_keeps_the_mask() -> None:
    made = type("UnitHermes", (Units, HERMES), {})
    keys = {"FED.FINETUNE_EPOCHS": 3}
    fed = quadratic(made(config(HERMES, ALWAYS, keys)), 3, momentum=0.9, val=1)
    state: FedState = fed.run()
    ((ids, p),) = fed.personal(state, [0, 1])
    for c, down in zip(ids, p[DOWN], strict=True):
        gone = state.clients[c]["mask"]["image.adapter"] == 0
        assert int(gone.sum()) == 5 and not bool(down[gone].any())
        assert not torch.equal(down, fed.downloads(state, 3, [c])[c][DOWN])


def test_lora_factors_must_keep_their_basis() -> None:
    world = CheckWorld(["PEFT.TEXT", "none", "PEFT.VISUAL", "lora", "PEFT.LORA_AVG", "product_svd"])
    with pytest.raises(ConfigError, match="LORA_AVG.*factors or freeze_a"):
        world.federation(load_trainer("Hermes"))


def test_hermes_goes_on_where_a_round_draws_only_clients_without_validation_images() -> None:
    """It used to end a long run in the round that happened to draw such clients alone."""
    world = CheckWorld(["PEFT.TEXT", "prompt", "PEFT.VISUAL", "feature"])
    hermes = load_trainer("Hermes")
    blind = [replace(s, val=np.zeros(0, np.int64)) for s in world.splits[1:]]
    fed = world.federation(hermes, Setup(splits=[world.splits[0], *blind]))
    state = fed.start()
    drawn = type("Drawn", (type(fed.plan),), {"sample": lambda self, round_: [1]})
    fed.plan = drawn(**vars(fed.plan))
    seen: list[RoundFinished] = []
    fed.subscribers.append(lambda e: seen.append(e) if isinstance(e, RoundFinished) else None)
    after = fed.round(state, 1)
    assert seen[0].report["without_validation"] == [1] and after.round == 1


def test_hermes_says_what_it_uses_beside_training_images() -> None:
    world = CheckWorld(["PEFT.TEXT", "prompt", "PEFT.VISUAL", "feature"])
    assert "validation" in world.federation(load_trainer("Hermes")).trainer.extra_data


# ---- several clients at once --------------------------------------------------------------------
def test_stacked_clients_decide_for_themselves() -> None:
    """Within 1e-9 of client by client, and the same units; one of them has no images to decide."""
    shares = [*FEATURE.splits[:2], empty(FEATURE.splits[2]), FEATURE.splits[3]]
    own = {"ACC_MODE": "rel", "ACC_THR": 1.0, "WARMUP": 0}
    for more in ({}, {"OVERLAP": "coverage"}):
        alone, together = (
            FEATURE.record(HERMES, Setup(opts=own | more, splits=shares, chunk=chunk))
            for chunk in (1, 4)
        )
        same_fed(together.states[-1], alone.states[-1], "four stacked against one by one", 1e-9)
        pruned = [float(s["prune"]["pruned"]) for s in alone.states[-1].clients.values()]
        assert pruned[2] == 0.0 and max(pruned) > 0.0
        for event, other in zip(together.events, alone.events, strict=True):
            assert event.report == other.report


def test_shares_are_cut_client_by_client() -> None:
    mask, score = torch.ones(3, 10), torch.arange(10.0).flip(0).expand(3, 10)
    found = HOME.kill(mask, score, torch.tensor([0.0, 0.2, 0.5]).double())
    assert (found == 0).sum(1).tolist() == [0, 2, 5]
