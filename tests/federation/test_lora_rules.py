"""``PEFT.LORA_AVG`` and ``PEFT.RANKS`` in runs: what is sent, what comes of it, who refuses."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.check.compare import same_fed
from fedvlm.check.invariants import run
from fedvlm.check.world import CheckWorld, Setup, Trajectory
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import State, Tree
from fedvlm.federation.aggregation.lora import RULES, product_svd
from fedvlm.federation.aggregation.updates import Updates, weighted_mean
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.server import ServerContext
from fedvlm.models.towers.adapters import FACTOR_A, FACTOR_B, delta_name, sites
from tests.models.toys import products

OPTS = ("PEFT.TEXT", "lora", "PEFT.VISUAL", "lora", "PEFT.RANK", "4", "PEFT.BLOCKS", "1",
        "PEFT.HEAD", "text")
FAST = Setup(pixels=True, rounds=2, chunk=4, packed=True)
RANKS, EACH = ("PEFT.RANKS", "1,2,4"), (1, 2, 4, 1)
SITES = 4  # q and v of one block in each tower, [16, 16] each
ROW = 16 * 8


class Plain(PeftTrainer):
    """FedAvg over whatever PEFT builds."""


@cache
def history(rule: str, *more: str) -> Trajectory:
    return CheckWorld([*OPTS, "PEFT.LORA_AVG", rule, *more]).record(Plain, FAST)


def after(run: Trajectory, round_: int) -> Tree:
    return run.states[round_].server["w"]


def mean_product(run: Trajectory, round_: int) -> dict[str, Tensor]:
    """Return the weighted mean of the dense products of what was sent."""
    updates = run.events[round_ - 1].updates
    assert updates is not None
    share = (updates.weight / updates.weight.sum())[:, None, None]
    return {s: (share * v).sum(0) for s, v in products(updates.params).items()}


def near(one: Tensor, other: Tensor) -> None:
    assert torch.allclose(one, other, 0, 1e-12)


@pytest.mark.parametrize("more", [(), RANKS], ids=["one rank", "ranks"])
@pytest.mark.parametrize("rule", ["residual", "stack"])
def test_the_servers_layers_are_the_mean_of_the_clients(rule: str, more: tuple[str, ...]) -> None:
    run = history(rule, *more)
    for round_ in (1, 2):
        old, new, exact = after(run, round_ - 1), after(run, round_), mean_product(run, round_)
        for site, value in products(new).items():
            gain = new[delta_name(site)] - old[delta_name(site)]
            near(gain + value, exact[site])
            assert float(gain.abs().max()) > 0
    if rule == "stack":
        assert not any(new[s + FACTOR_B].any() for s in sites(new))
        assert not torch.equal(new[sites(new)[0] + FACTOR_A], old[sites(new)[0] + FACTOR_A])


def test_by_rank_is_the_mean_of_those_who_have_the_component() -> None:
    run = history("by_rank", *RANKS)
    updates = run.events[0].updates
    assert updates is not None
    w = after(run, 1)
    for s in sites(w):
        for end in (FACTOR_A, FACTOR_B):
            for i in range(4):
                those = [k for k, c in enumerate(updates.clients) if EACH[c] > i]
                p = updates.weight[those] / updates.weight[those].sum()
                sent = updates.params[s + end][those]
                part = sent[:, i] if end == FACTOR_A else sent[:, :, i]
                near((w[s + end][i] if end == FACTOR_A else w[s + end][:, i]),
                     (p[:, None] * part).sum(0))


def test_by_rank_without_ranks_is_the_mean() -> None:
    one, other = after(history("by_rank"), 2), after(history("factors"), 2)
    for name, value in other.items():
        near(one[name], value)


def test_fair_goes_to_the_mean_product_along_the_mean_a() -> None:
    run, plain = history("fair"), history("factors")
    w, exact = after(run, 1), mean_product(run, 1)
    for s in sites(w):
        a, b = w[s + FACTOR_A], w[s + FACTOR_B]
        near(a, after(plain, 1)[s + FACTOR_A])
        near((exact[s] - b @ a) @ a.mT, 0.01 * (b - after(plain, 1)[s + FACTOR_B]))


def test_norms_weigh_lora() -> None:
    run = history("by_norm", *RANKS)
    p = run.events[0].updates.params
    norm = torch.stack([v.square().sum((1, 2)) for v in products(p).values()]).sum(0).sqrt()
    for name, v in after(run, 1).items():
        near(v, ((norm / norm.sum())[:, None, None] * p[name]).sum(0))


def test_products_with_ranks_are_cut_where_they_are_smallest() -> None:
    run = history("product_svd", *RANKS)
    down = run.fed.downloads(run.fed.adopt(run.states[1]), 2, [0])[0]
    for site, exact in mean_product(run, 1).items():
        u, s, vh = torch.linalg.svd(exact)
        near(products(down)[site], u[:, :1] * s[:1] @ vh[:1])


def test_what_is_no_factor_is_averaged_as_ever() -> None:
    run = history("product_svd", "PEFT.HEAD", "linear", "PEFT.TEXT", "none")
    updates = run.events[0].updates
    assert updates is not None
    plain = {n: v for n, v in updates.params.items() if ".lora." not in n}
    assert {n.partition(".")[0] for n in plain} == {"head"}
    share = updates.weight / updates.weight.sum()
    for name, v in plain.items():
        near(after(run, 1)[name], torch.einsum("k,k...->...", share, v))


@pytest.mark.parametrize(("rule", "more", "up"), [
    ("factors", (), [8] * 4), ("freeze_a", (), [4] * 4), ("share_a", (), [4] * 4),
    ("alternate", (), [4] * 4), ("residual", (), [8] * 4), ("by_norm", RANKS, EACH),
    ("residual", RANKS, EACH),
])
def test_traffic_is_as_sent(rule: str, more: tuple[str, ...], up: list[int]) -> None:
    """Rows of A and columns of B; of lower ranks than the server's each costs 4 bytes more."""
    run = history(rule, *more)
    row = ROW if not more else 2 * (ROW + 4)
    for event in run.events:
        assert {c: sum(b.values()) for c, b in event.bytes_up.items()} == {
            c: SITES * n * row for c, n in enumerate(up)}
    down = [sum(run.events[-1].bytes_down[c].values()) for c in range(4)]
    dense = SITES * 16 * ROW if rule == "residual" else 0
    whole = [8] * 4 if rule == "alternate" else up  # both factors were trained by others since
    assert down == [SITES * n * (2 * ROW if n == 4 and more else row) + dense for n in whole]


def test_one_factor_moves_in_turn_and_the_other_stays_in_all_bits() -> None:
    run = history("alternate")
    for round_, moving in ((1, FACTOR_B), (2, FACTOR_A)):
        old, new = after(run, round_ - 1), after(run, round_)
        assert all(torch.equal(old[n], new[n]) != n.endswith(moving) for n in new)


def test_b_stays_with_its_client() -> None:
    run = history("share_a")
    own = [run.states[2].clients[c]["w"] for c in (0, 1)]
    names = run.fed.groups.personal
    assert all(n.endswith(FACTOR_B) for n in names) and len(names) == SITES
    assert all(not torch.equal(own[0][n], own[1][n]) for n in names)


def test_a_second_lora_is_trained_and_never_sent() -> None:
    run = history("residual", "PEFT.PRIVATE_RANK", "2")
    names = run.fed.groups.personal
    assert len(names) == 2 * SITES and all(".private.lora." in n for n in names)
    assert run.states[2].clients[0]["w"][names[0]].shape[-2:] in ((2, 16), (16, 2))
    assert all(run.states[2].clients[0]["w"][n].any() for n in names)
    assert not set(names) & set(run.events[-1].updates.params)


@pytest.mark.parametrize(("rule", "more"), [("residual", RANKS), ("alternate", ())])
def test_stacked_equals_one_by_one_and_a_resumed_run_the_whole_one(
    rule: str, more: tuple[str, ...]
) -> None:
    run, world = history(rule, *more), CheckWorld([*OPTS, "PEFT.LORA_AVG", rule, *more])
    for name, v in world.record(Plain, Setup(pixels=True, rounds=2)).states[-1].server["w"].items():
        assert torch.allclose(v, after(run, 2)[name], 1e-8, 1e-11), name
    same_fed(world.record(Plain, FAST, run.states[1]).states[-1], run.states[2], "resumed")


# ---- methods ------------------------------------------------------------------------------------
METHODS = [c for c in map(load_trainer, trainer_files())
           if issubclass(c, PeftTrainer) and c.name != "PromptFL"]
OWN = {"FedAS", "FedDecomp", "FedDyn", "FedFomo", "HEART-PFL", "Hermes", "LG-FedAvg", "SCAFFOLD",
       "pFedMe"}
NONE = {"LocalOnly", "FedProto", "CLIP-LoRA"}  # they share no LoRA
KEEP = {"Ditto", "FedALA", "APFL"}  # beside the shared model
DIFFER = {"Ditto", "FedALA", "FedDyn", "FedFomo", "HEART-PFL", "Hermes", "SCAFFOLD", "pFedMe"}
TEXT = {"FedDPA"}  # no LoRA in the text tower
ONE = TEXT | {"HetLoRA"}  # is by_norm
REFUSE = {
    "by_norm": NONE | TEXT | {"FedFomo", "Hermes"}, "fair": NONE | ONE | {"FedFomo", "Hermes"},
    "by_rank": NONE | ONE | {"FedFomo", "Hermes"},
    "product_svd": NONE | DIFFER | ONE,
    "residual": NONE | OWN | KEEP | ONE | {"MOON"}, "stack": NONE | OWN | KEEP | ONE | {"MOON"},
    "share_a": NONE | ONE | {"HEART-PFL", "Hermes"}, "alternate": NONE | OWN | ONE | {"FedALA"},
    "RANKS": NONE | OWN | KEEP | TEXT, "PRIVATE_RANK": TEXT | {"FedDecomp", "Hermes"},
}


def words_of(rule: str) -> tuple[str, ...]:
    return {"RANKS": RANKS, "PRIVATE_RANK": ("PEFT.PRIVATE_RANK", "1")}.get(
        rule, ("PEFT.LORA_AVG", rule))


@pytest.mark.parametrize("rule", REFUSE)
def test_each_method_takes_a_rule_or_says_why_not(rule: str) -> None:
    world, refused = CheckWorld([*OPTS, "PEFT.RANK", "8", *words_of(rule)]), set()
    for cls in METHODS:
        try:
            cls(world.config(cls)).trainables(world.model(), torch.Generator())
        except ConfigError as error:
            assert "PEFT." in str(error) and cls.name in str(error)
            refused.add(cls.name)
    assert refused == REFUSE[rule]


@pytest.mark.parametrize("rule", [r for r in RULES if r not in ("factors", "freeze_a", "share_a")])
def test_a_combine_of_its_own_must_say_what_it_keeps_to(rule: str) -> None:
    """It would be passed over in silence; so would an aggregate that combines by itself."""
    class Own(Plain):
        def combine(self, ctx: ServerContext, updates: Updates) -> Tree:
            return weighted_mean(updates)

    class Silent(Plain):
        def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
            return {"w": weighted_mean(updates)}

    class Says(Own):
        lora_taken = (rule, "RANKS")

    def build(cls: type[PeftTrainer], *words: str) -> None:
        world = CheckWorld([*OPTS, *words])
        cls(world.config(cls)).trainables(world.model(), torch.Generator())

    words = ("PEFT.LORA_AVG", rule)
    with pytest.raises(ConfigError, match=f"LORA_AVG {rule}: Own has its own aggregation rule.* "
                                          "factors or freeze_a"):
        build(Own, *words)
    with pytest.raises(ConfigError, match=f"LORA_AVG {rule}: Silent does "):
        build(Silent, *words)
    with pytest.raises(ConfigError, match="PEFT.RANKS: Own has its own aggregation rule"):
        build(Own, *RANKS)
    build(Says, *words, *RANKS)
    for kind in ("factors", "freeze_a", "share_a"):
        build(Own, "PEFT.LORA_AVG", kind)


@pytest.mark.slow
def test_products_are_averaged_in_every_method_that_takes_them(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    world = CheckWorld([*OPTS, "PEFT.LORA_AVG", "product_svd"])
    seen = list[str]()

    def watched(params: Tree, *given: Any, **how: Any) -> Tree:
        seen.extend(sites(params))
        return product_svd(params, *given, **how)

    monkeypatch.setattr("fedvlm.federation.peft_trainer.product_svd", watched)
    for cls in (c for c in METHODS if c.name not in REFUSE["product_svd"]):
        seen.clear()
        world.federation(cls, Setup(pixels=True, rounds=1, chunk=4)).run()
        assert seen, cls.name


@pytest.mark.slow
@pytest.mark.parametrize("rule", REFUSE)
def test_each_method_runs_by_the_rules_that_it_takes(rule: str) -> None:
    world = CheckWorld([*OPTS, "PEFT.RANK", "8", *words_of(rule)])
    for cls in (c for c in METHODS if c.name not in REFUSE[rule]):
        fed = world.federation(cls, Setup(pixels=True, rounds=2, chunk=4))
        state = fed.run()
        assert all(torch.isfinite(v).all() for v in fed.shared(state).values()), cls.name


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "more"), [
    ("fair", ()), ("residual", ()), ("stack", ()), ("share_a", ()), ("alternate", ()),
    ("by_norm", RANKS), ("by_rank", RANKS), ("residual", ("PEFT.PRIVATE_RANK", "2")),
])
def test_invariants_hold(rule: str, more: tuple[str, ...]) -> None:
    but = {"stack": ("factors begin anew", "G4", "G5", "G6"),
           "by_norm": ("clients have different ranks", "G4", "G5", "G6"),
           "by_rank": ("clients have different ranks", "G4", "G5", "G6"),
           "alternate": ("one factor moves in a round", "G5"),
           "residual": ("the server moves the layers", "G5")}

    class Mine(Plain):
        exempt = dict.fromkeys(but.get(rule, ("",))[1:], but.get(rule, ("",))[0])  # noqa: RUF012

    found = run(Mine, [*OPTS, "PEFT.LORA_AVG", rule, *more])
    assert {v.name: v.detail for v in found if v.state == "broken"} == {}


@pytest.mark.parametrize(("words", "said"), [
    (("PEFT.RANKS", "2,5"), r"RANKS has '5': .*from 1 to PEFT.RANK \(4\)"),
    (("PEFT.RANKS", "2", "PEFT.LORA_AVG", "freeze_a"), "share one A of one rank"),
    (("PEFT.PRIVATE_RANK", "99"), "PEFT.PRIVATE_RANK 99 is above 16"),
], ids=["rank", "freeze_a", "private"])
def test_refusals(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        CheckWorld([*OPTS, *words]).federation(Plain)


def test_every_rule_has_its_paper() -> None:
    assert all(any(year in rule.source for year in ("2024", "2025")) for rule in RULES.values())
