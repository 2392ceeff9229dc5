"""Uploads as sent: what the server sees, and what is counted, against hand computations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.check.compare import same_fed
from fedvlm.check.disk import read_state, write_state
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import State, Tree
from fedvlm.federation.aggregation.arrival import Rows, Upload
from fedvlm.federation.aggregation.rules import AggregateSpec
from fedvlm.federation.context import Context
from fedvlm.federation.rounds import FedState, RoundFinished
from fedvlm.federation.server import Held, ServerContext
from tests.federation.lora_toys import (
    BIAS,
    FA,
    FB,
    HINT,
    KINDS,
    RANKS,
    SITE,
    FedEx,
    Lora,
    R,
    dense,
    four,
    sent_of,
)
from tests.federation.toys import Seen, Watched

ROW = {FA: 3 * 8, FB: 5 * 8, BIAS: 2 * 8}  # bytes of a row, of B of a column
WHOLE = {FA: 4, FB: 4, BIAS: 6}


def history(fed: Watched, start: FedState | None = None) -> tuple[Seen, list[RoundFinished]]:
    events: list[RoundFinished] = []
    fed.subscribers.append(lambda e: events.append(e) if isinstance(e, RoundFinished) else None)
    state: Any = fed.run(start)
    return state, [e for e in events if e.round]


def by_hand(kind: str, round_: int, client: int) -> dict[str, int]:
    """Return the bytes of an upload: values, and 4 for each index."""
    out = {}
    for name, row in ROW.items():
        rows = sent_of(kind, name, round_, client)
        size = WHOLE[name] * row if rows is None else len(rows) * (row + 4)
        out |= {name: size} if size else {}
    return out


# ---- dense for the server, counted as sent ------------------------------------------------------
@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_the_aggregate_is_that_of_tensors_filled_by_hand(kind: str, chunk: int) -> None:
    """Each gap from the download of its own client, in chunks of two forms."""
    mine, seen = history(four(KINDS[kind](), chunk=chunk))
    other, plain = history(four(dense(kind)(), chunk=chunk))
    same_fed(mine.whole, other.whole, f"{kind} against the dense sum")
    for event, whole in zip(seen, plain, strict=True):
        assert event.updates is not None and whole.updates is not None
        assert event.telltale == whole.telltale
        for name, v in event.updates.params.items():
            assert torch.equal(v, whole.updates.params[name])
            assert torch.equal(event.updates.received[name], whole.updates.received[name])
        assert event.bytes_up == {c: by_hand(kind, event.round, c) for c in range(4)}
        assert whole.bytes_up == {c: {n: ROW[n] * WHOLE[n] for n in ROW} for c in range(4)}


def test_who_sent_what_is_told() -> None:
    _, seen = history(four(KINDS["all"](), rounds=1))
    updates = seen[0].updates
    assert updates is not None
    assert {n: v.tolist() for n, v in updates.present.items()} == {
        FA: [False] * 4,
        FB: [[row < rank for row in range(4)] for rank in RANKS],
        BIAS: [[True] * 6, [True, False, False, True, False, False], [True] * 6,
               [False, False, True, False, False, True]],
    }
    assert updates.sent(FB).shape == (4, 1, 4) and updates.sent(BIAS).shape == (4, 6, 1)
    assert set(updates.messages()[0]) == {FB, BIAS}
    assert not updates.messages()[0][FB][:, 1:].any()
    part = updates.take([1, 3])
    assert part.bytes() == {c: by_hand("all", 1, c) for c in (1, 3)}
    assert part.present[BIAS].tolist() == updates.present[BIAS][[1, 3]].tolist()


@pytest.mark.parametrize(("chunk", "bad"), [(1, 1), (4, 1), (4, 3)])
def test_dropped_clients_take_their_rows_with_them(chunk: int, bad: int) -> None:
    runs = []
    for kind in (KINDS["all"], dense("all")):
        trainer = kind()
        trainer.bad = (bad,)
        runs.append(history(four(trainer, chunk=chunk, nonfinite="drop", rounds=2)))
    (mine, seen), (other, _) = runs
    same_fed(mine.whole, other.whole, f"without client {bad}")
    assert seen[0].dropped.keys() == {bad}
    assert seen[0].bytes_up == {c: by_hand("all", 1, c) for c in range(4) if c != bad}


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum", "clipped_mean", "similarity"])
def test_a_rule_by_name_sees_the_dense_rows(rule: str) -> None:
    spec = AggregateSpec(rule, trim=0.3)
    mine, _ = history(four(KINDS["all"](), aggregator=spec))
    other, _ = history(four(dense("all")(), aggregator=spec))
    same_fed(mine.whole, other.whole, rule)


@pytest.mark.parametrize("kind", [KINDS["all"], FedEx])
def test_a_run_that_is_resumed_has_the_same_bits_and_bytes(
    kind: type[Lora], tmp_path: Path
) -> None:
    whole, seen = history(four(kind(), rounds=4, frac=0.5))
    first = four(kind(), rounds=4, frac=0.5)
    write_state(tmp_path, first, first.run(until=2))
    fed = four(kind(), rounds=4, frac=0.5)
    again, late = history(fed, read_state(tmp_path, fed))
    same_fed(again.whole, whole.whole, "resumed")
    assert [(e.bytes_up, e.bytes_down) for e in late] == [
        (e.bytes_up, e.bytes_down) for e in seen[2:]
    ]


def test_a_tensor_that_nobody_sends_may_be_left_out_of_downloads() -> None:
    class Later(Lora):
        """A stays as it is; even clients do not even receive it."""

        reads_old = True

        def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
            tree = super().download(ctx, server, client)
            return tree if client % 2 else {n: v for n, v in tree.items() if n != FA}

        def send(self, ctx: Context, w: Tree, received: Tree) -> Upload:
            return ctx.upload(w, only=(r".*\.B", BIAS))

    state, seen = history(four(Later(), rounds=2))
    assert seen[-1].updates is not None and set(seen[-1].updates.params) == {FB, BIAS}
    assert torch.equal(state.server["w"][FA], state.clients[0]["w"][FA].new_tensor(
        Lora().trainables(None, torch.Generator())[FA].tolist()
    ))
    assert FA not in seen[0].bytes_down[0] and seen[0].bytes_down[1][FA] == 96

    class Sends(Later):
        def send(self, ctx: Context, w: Tree, received: Tree) -> Upload:
            return ctx.upload(w, only=(r".*\.[AB]", BIAS) if ctx.clients[0] % 2 else (BIAS,))

    with pytest.raises(FedvlmError, match=r"send different tensors: \['image.lora.0.q.A'\]"):
        four(Sends(), rounds=1).run()


# ---- downloads ----------------------------------------------------------------------------------
def test_a_download_cut_to_ranks_is_counted_as_sent() -> None:
    class Cut(KINDS["ranks"]):  # type: ignore[misc]
        def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
            tree = ctx.cut(super().download(ctx, server, client), ranks={SITE: RANKS[client]})
            return ctx.cut(tree, rows={BIAS: Rows(torch.tensor([5, -1, 0]))})

    fed = four(Cut(), rounds=1)
    given = fed.downloads(fed.start(), 1, range(4))
    for client, rank in enumerate(RANKS):
        assert not given[client][FA][rank:].any() and given[client][FA][:rank].all()
        assert not given[client][FB][:, rank:].any() and given[client][FB][:, :rank].all()
        assert given[client][BIAS].any(1).tolist() == [True, *[False] * 4, True]
    _, seen = history(fed)
    for client, rank in enumerate(RANKS):
        size = {FA: rank * 28, FB: rank * 44, BIAS: 2 * 20} | ({HINT: 8} if client % 2 else {})
        assert seen[0].bytes_down[client] == size
    ctx = fed.server_context(1, Held(fed.held))
    for what, sentence in (
        ({"ranks": {SITE: 5}}, r"ranks of 'image.lora.0.q' are \[5\]; its rank is 4"),
        ({"rows": {BIAS: Rows(torch.tensor([6]))}}, "a row of 'image.bias' that does not exist"),
    ):
        with pytest.raises(FedvlmError, match=sentence):
            ctx.cut(fed.p0, **what)  # type: ignore[arg-type]


# ---- the group server ---------------------------------------------------------------------------
def test_what_the_mean_of_the_factors_misses_lies_in_the_residual() -> None:
    fed = four(FedEx(), rounds=2)
    first = fed.round(fed.start(), 1)
    events: list[Any] = []
    fed.subscribers.append(events.append)
    after = fed.round(first, 2)
    updates = events[-1].updates
    share = updates.weight / updates.weight.sum()
    mean = sum(p * updates.params[FB][k] @ updates.params[FA][k] for k, p in enumerate(share))
    w = after.server["w"]
    assert torch.allclose(w[R] + w[FB] @ w[FA], mean, atol=1e-14) and w[R].any()
    assert R not in updates.params and R not in updates.received
    assert all(R not in state["w"] for state in after.clients.values())
    assert torch.equal(fed.shared(after)[R][0], w[R]) and torch.equal(events[-1].shared[R][0], w[R])


def test_the_servers_tensors_travel_when_they_moved() -> None:
    """It moves in rounds 2 and 4 (of 6); a client that was away gets it when it comes back."""
    fed = four(FedEx(), rounds=6, frac=0.5)
    _, seen = history(fed)
    last: dict[int, int] = {}
    for event in seen:
        for client, size in event.bytes_down.items():
            moved = max([m for m in (2, 4) if m < event.round], default=0)
            due = client not in last or last[client] <= moved
            assert size.get(R, 0) == (5 * 3 * 8 if due else 0), (event.round, client)
            last[client] = event.round
        assert all(R not in size for size in event.bytes_up.values())
    counted = [R in size for event in seen for size in event.bytes_down.values()]
    assert any(counted) and not all(counted)


def test_a_client_neither_trains_nor_sends_the_servers_tensors() -> None:
    fed = four(FedEx(), rounds=1)
    ctx = fed.context([0, 1], 1)
    p = {n: torch.stack([v, v]) for n, v in fed.p0.items()}
    new = ctx.fit(p, fed.trainer.loss, train=(r".*",)).params
    assert torch.equal(new[R], p[R]) and not torch.equal(new[FA], p[FA])
    assert set(ctx.upload(p).params) == {FA, FB, BIAS}

    class Sends(FedEx):
        extras_up = (r"residual\..*",)

        def send(self, ctx: Context, w: Tree, received: Tree) -> Upload:
            return ctx.upload(w, extras={R: w[R]})

    class Keeps(FedEx):
        def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
            return state, ctx.upload({n: state["w"][n] for n in state["w"]} | {R: state["w"][R]})

    class Hides(FedEx):
        def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
            return {n: v for n, v in server["w"].items() if n != R}

    class Loses(FedEx):
        def aggregate(self, ctx: ServerContext, server: State, updates: Any) -> State:
            return {"w": {n: v for n, v in server["w"].items() if n != R}}

    for kind, sentence in (
        (Sends, r"uploads \['residual.q'\] outside"),
        (Keeps, "reads 'residual.q' from the client's state"),
        (Hides, r"would not receive \['residual.q'\] of the group server"),
        (Loses, r"after its aggregate the global model lacks \['residual.q'\]"),
    ):
        with pytest.raises(FedvlmError, match=sentence):
            four(kind(), rounds=1).run()


def test_extras_that_are_not_as_the_method_says_are_refused() -> None:
    class Notes(Lora):
        extras_up = (r"note(\..*)?",)
        sent: Tree = {"note": torch.zeros(4, 2)}
        form: Tree = {"note": torch.zeros(2)}

        def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
            return state, ctx.upload(received, extras={n: v[:ctx.k] for n, v in self.sent.items()})

        def extra_forms(self, ctx: Context, start: Tree) -> Tree:
            assert all(v.is_meta for v in start.values())
            return self.form

    four(Notes(), rounds=1).run()
    for sent, said in (
        ({"note": torch.zeros(4, 3)}, r"'note' is \[3\] torch.float32 of a client, not \[2\]"),
        ({"note": torch.zeros(4, 2).double()}, "torch.float64 of a client"),
        ({}, "'note' is missing"), (Notes.sent | {"note.b": torch.zeros(4)}, "'note.b', which"),
    ):
        odd = type("Odd", (Notes,), {"sent": sent})
        with pytest.raises(FedvlmError, match=f"{said}.*does not match its extra_forms"):
            four(odd(), rounds=1).run()


def test_a_group_that_there_is_not_is_refused() -> None:
    class Odd(Lora):
        groups = ((r".*", "servers"),)

    with pytest.raises(ConfigError, match="'servers', none of shared, personal, frozen, server"):
        four(Odd())
