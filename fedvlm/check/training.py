"""Invariants of training, evaluation and resume."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fedvlm.check.compare import (
    Broken,
    copy_fed,
    demand,
    differs,
    gap,
    same_fed,
    same_state,
    same_tree,
    to_plain,
)
from fedvlm.check.disk import read_state, write_state
from fedvlm.check.messages import CLOSE, EXACT, Method, sent_in, work
from fedvlm.check.world import EPOCHS, RESNET, SIZES, CheckWorld, Setup, Trajectory
from fedvlm.core import rng
from fedvlm.core.errors import ConfigError, DivergedError, MethodError
from fedvlm.core.trees import State, Tree, clone, first_non_finite, stack
from fedvlm.federation.batches import Batch
from fedvlm.federation.groups import FROZEN, SERVER
from fedvlm.federation.local.streams import prove_method
from fedvlm.federation.rounds import FedState, WholeState


def g4_no_rate(world: CheckWorld, trainer: Method) -> None:
    """With every learning rate at zero nothing moves, weight decay and momentum included."""
    rates = {
        key: 0.0 for key, option in trainer.options.items()
        if "LR" in key.split("_") and option.kind is float
    }
    run = world.record(trainer, Setup(lr=0.0, decay=0.1, rounds=2, opts=rates))
    start, end = run.states[0], run.states[-1]
    names = set(run.fed.p0)
    for client, state in end.clients.items():
        for slot, tree in state.items():
            old = start.clients[client].get(slot, {})
            still = {n: v for n, v in tree.items() if n in names and n in old}
            same_tree(
                still, {n: old[n] for n in still}, f"lr 0: client {client}, slot '{slot}'", EXACT
            )
    for (ids, p), (_, old) in zip(_personal(run, end), _personal(run, start), strict=True):
        same_tree(p, old, f"lr 0: personal models of clients {ids}", EXACT)
    last, first = (run.fed.shared(run.fed.adopt(copy_fed(state))) for state in (end, start))
    same_tree(last, first, "lr 0: shared model", EXACT)


def _personal(run: Trajectory, state: WholeState) -> list[tuple[Sequence[int], Tree]]:
    return list(run.fed.personal(run.fed.adopt(copy_fed(state)), range(run.fed.plan.clients)))


def g5_centralised(world: CheckWorld, trainer: Method) -> None:
    """One client with full batches is centralised SGD (torch.optim, written out here)."""
    split = world.splits[0]
    setup = Setup(splits=[split], batch=len(split.train), momentum=0.0, cosine=False)
    run = world.record(trainer, setup)
    fed = world.federation(trainer, setup)
    index = torch.as_tensor(split.train)
    batch = Batch(
        world.streams(fed, index[None]), world.labels[index][None],
        torch.ones(1, len(index), dtype=torch.float64),
    )
    p = {n: v.clone() for n, v in fed.p0.items()}
    given = fed.downloads(fed.start(), 1, [0])[0]
    moving = [
        p[n].requires_grad_() for n, group in fed.groups.of.items()
        if group not in (FROZEN, SERVER)
    ]
    optimiser = torch.optim.SGD(moving, lr=setup.lr, weight_decay=setup.decay)
    for _ in range(setup.rounds * EPOCHS):
        optimiser.zero_grad()
        whole = {n: v[None] for n, v in {**given, **p}.items()}
        out = fed.trainer.loss(fed.model, whole, batch)
        (out[0] if isinstance(out, tuple) else out).sum().backward()
        optimiser.step()
    down = run.fed.downloads(run.fed.adopt(run.states[-1]), setup.rounds, [0])[0]
    shared = {n: p[n].detach() for n in fed.groups.shared}
    same_tree(
        {n: down[n] for n in shared if n in down}, shared,
        f"{setup.rounds} rounds of one client against centralised SGD", CLOSE,
    )


def g8_resume(world: CheckWorld, trainer: Method) -> None:
    """Saved after round 1, loaded and continued: the bits of an uninterrupted run."""
    whole = world.trajectory(trainer)
    state = whole.states[1]
    with tempfile.TemporaryDirectory() as name:
        fed = world.federation(trainer)
        write_state(Path(name), fed, fed.adopt(copy_fed(state)))
        fed = world.federation(trainer)
        start = fed.read(read_state(Path(name), fed))
    same_fed(start, state, "read back from disk")
    rest = world.record(trainer, start=start)
    same_fed(rest.states[-1], whole.states[-1], "resumed after round 1")
    for ours, theirs in zip(rest.events, whole.events[1:], strict=True):
        what = f"resumed after round 1: round {ours.round}"
        demand(to_plain(ours.report) == to_plain(theirs.report), f"{what} reports different "
                                                                 "numbers")
        one, other = sent_in(ours), sent_in(theirs)
        for client in one.clients:
            demand(
                repr(one.of(client)) == repr(other.of(client)),
                f"{what}, client {client} logs different metrics",
            )


def g9_frozen(world: CheckWorld, trainer: Method) -> None:
    """Backbone weights and BatchNorm statistics are the same bits before and after."""
    digests = world.trajectory(trainer).digests
    demand(len(set(digests)) == 1, "a backbone weight changed during the run")
    resnet = CheckWorld(world.opts, RESNET, yaml=world.yaml)
    tower = resnet.backbone.model
    buffers, weights = clone(dict(tower.named_buffers())), clone(dict(tower.named_parameters()))
    small = [replace(s, train=s.train[:2]) for s in resnet.splits[:2]]
    try:
        fed = resnet.federation(trainer, Setup(splits=small, rounds=1, pixels=True))
    except ConfigError:  # the method refuses such a tower: nothing of it can move
        return
    try:
        fed.round(fed.start(), 1)  # not run(): that would stop without the tensor's name
    except MethodError as error:  # a module of one's own for the blocks of a ViT
        if not (isinstance(error.__cause__, AttributeError) and type(tower.visual).__name__ in str(
                error)):
            raise
    same_tree(dict(tower.named_buffers()), buffers, "BatchNorm buffers after a round on pixels")
    same_tree(dict(tower.named_parameters()), weights, "ResNet weights after a round on pixels")
    training = [n for n, m in tower.named_modules() if m.training]
    demand(not training, f"module '{''.join(training[:1])}' was put into training mode")


def g11_small_clients(world: CheckWorld, trainer: Method) -> None:
    """Clients with fewer samples than the batch size, and with one, take a step and change."""
    run = world.trajectory(trainer)
    state = run.states[0]
    for client, size in enumerate(SIZES):
        fed = world.federation(trainer)
        alone = work(fed, fed.adopt(copy_fed(state)), [client])
        said = f"client {client} with {size} sample(s) and batch size {Setup().batch}"
        demand(alone.counters.get("steps", 0) >= 1, f"{said} took no step")
        message = alone.uploads[0].arrive().messages()[client]
        down = fed.downloads(fed.start(), 1, [client])[client]
        own = fed.clients.read([client], alone.versions)[client]
        changed = differs(own, state.clients[client]) or any(
            gap(v, down[n]) > 0 for n, v in message.items() if n in down
        )
        demand(changed, f"{said} did not change")


def g12_seeds(world: CheckWorld, trainer: Method) -> None:
    """The seed alone decides: same seed same bits, other seed others; evaluation adds nothing."""
    run = world.trajectory(trainer)
    demand(run.generators[0] == run.generators[1], "the run draws from a global random generator")
    end, elsewhere = run.states[-1], (rng.seed_of(0, "check-generators"), torch.device("cpu"))
    try:  # both in one run; where its bits are others, a run without evaluation says why
        with rng.fork_generators(*elsewhere):
            same_fed(_evaluated(world, trainer), end, "a run with an evaluation after each round")
    except Broken:
        with rng.fork_generators(*elsewhere):
            again = world.record(trainer)
        same_fed(again.states[-1], end, "a second run with the same seed")
        raise
    first, other = run.states[1], world.record(trainer, Setup(seed=2), until=1).states[1]
    demand(
        differs(other.server, first.server)
        or any(differs(other.clients[c], s) for c, s in first.clients.items()),
        "another seed gives the same numbers",
    )


def _evaluated(world: CheckWorld, trainer: Method) -> WholeState:
    """Return the end of a run in which all models are built and used after each round."""
    fed = world.federation(trainer)

    def evaluate(state: FedState) -> None:
        trees = [(list(ids), p) for ids, p in fed.personal(state, range(fed.plan.clients))]
        for ids, p in [*trees, ([0], fed.shared(state))]:
            index = torch.stack([torch.as_tensor(world.splits[c].test) for c in ids])
            logits = fed.trainer.predict(fed.model, p, world.streams(fed, index))
            want = (*index.shape, len(fed.model.classnames))
            what = f"round {state.round}, logits of clients {ids}"
            demand(tuple(logits.shape) == want, f"{what} are {tuple(logits.shape)}, not {want}")
            demand(bool(torch.isfinite(logits).all()), f"{what} are not finite")

    fed.savers.append(evaluate)
    return copy_fed(fed.read(fed.run()))


def g13_fast_paths(world: CheckWorld, trainer: Method) -> None:
    """Stacked clients, packed text and cached features give the plain path's numbers.

    From the state after round 1: an exactly orthogonal or zero start is degenerate. Stacking and
    packing are tried together, as a run uses them; where that fails, each alone says which it is.
    """
    check_cached_streams(world, trainer)
    run = world.trajectory(trainer)

    def compare(path: str, setup: Setup) -> None:
        fast = world.record(trainer, setup, run.states[1])
        same_fed(fast.states[-1], run.states[-1], f"{path} against the plain path", CLOSE)

    compare("pixels instead of cached features", Setup(pixels=True))
    try:
        compare("stacked and packed", Setup(chunk=4, packed=True))
    except Exception:
        compare("four clients stacked", Setup(chunk=4))
        compare("the packed text tower", Setup(packed=True))
        raise


def g13_class_order(world: CheckWorld, trainer: Method) -> None:
    """A method that predicts unseen classes reads a class by its name, not by its place.

    What it keeps of each class would otherwise be added to whichever class has that number.
    """
    run = world.trajectory(trainer)
    fed, index = run.fed, torch.as_tensor(world.splits[0].test)[None]
    if not fed.trainer.open_vocabulary:
        return
    turned = fed.model.with_classes(fed.model.classnames[::-1])
    x = world.streams(fed, index)
    for (first, *_), p in _personal(run, run.states[-1])[:1]:
        one = {n: v[:1] for n, v in p.items()}
        plain, other = (fed.trainer.predict(m, one, x) for m in (fed.model, turned))
        off = float((plain - other.flip(-1)).abs().max() / plain.abs().max().clamp_min(1))
        demand(
            off <= CLOSE, f"client {first}: with the classes in another order their logits differ "
            f"by {off:.1e}: something is kept for each class by its number, so unseen classes "
            "would get that of others; declare open_vocabulary = False",
        )


def check_cached_streams(world: CheckWorld, trainer: Method) -> None:
    """Demand that the declared stream gives the numbers of pixels (``local.streams.prove_method``).

    Raises:
        Broken: names the stream, the tensor and the block.
    """
    fed = world.federation(trainer)
    cached = world.source(Setup(), fed.model, *fed.trainer.streams(fed.model))
    images = torch.as_tensor(world.splits[0].train[:2])
    pixels = world.source(Setup(), fed.model, "pixels")
    try:
        prove_method(
            fed.trainer, fed.model, fed.p0, fed.server_context, cached, pixels, images,
            fed.plan.seed,
        )
    except ConfigError as error:
        raise Broken(f"pixels instead of cached features: {error}") from error


def g14_non_finite(world: CheckWorld, trainer: Method) -> None:
    """A client with numbers that are not finite is named with its round; the others go on."""
    bad = 1
    for chunk in (1, 4):
        setup = Setup(poisoned=(bad,), chunk=chunk, rounds=1)
        try:
            world.record(trainer, setup)
        except DivergedError as error:
            named = f"round 1, client {bad}"
            demand(named in str(error), f"the error message does not name '{named}': {error}")
        else:
            raise Broken(f"client {bad} trained on non-finite features without an error")
        run = world.record(trainer, replace(setup, nonfinite="drop"))
        left = sorted(run.events[0].dropped)
        demand(left == [bad], f"policy drop left out clients {left}, not [{bad}]")
        start, end = run.states[0], run.states[-1]
        what = f"policy drop: client {bad}"
        same_state(end.clients[bad], start.clients[bad], f"{what} does not keep its old state")
        parts: dict[str, State] = {f"client {c}": s for c, s in end.clients.items()}
        for who, state in (parts | {"server": end.server}).items():
            for slot, tree in state.items():
                name = first_non_finite(tree)
                demand(name is None, f"policy drop: {who}, slot '{slot}', '{name}' is not finite")


def g15_pure(world: CheckWorld, trainer: Method) -> None:
    """Client work and personal models done twice from equal inputs are equal in every bit.

    Work is done again where a number is not finite, to find out whose: what draws from a generator
    of its own, or keeps something aside, would then find something else.
    """
    fed = world.federation(trainer, Setup(chunk=len(world.splits)))
    state = fed.adopt(copy_fed(world.trajectory(trainer).states[1]))
    ids = list(range(fed.plan.clients))
    if not fed.trainer.batched:
        ids = ids[:1]

    def once() -> tuple[State, Tree, Tree, Tree]:
        given = fed.downloads(state, 2, ids)
        kept, received = fed.clients.stacked(ids, state.versions), stack([given[c] for c in ids])
        ctx = fed.context(ids, 2, state.versions)
        new, upload = fed.trainer.client_update(ctx, kept, received)
        again = fed.clients.stacked(ids, state.versions), stack([given[c] for c in ids])
        models = fed.trainer.personalize(fed.context(ids, 1, state.versions), *again)
        return new, upload.params | upload.extras, ctx.logs | {"weight": upload.weight}, models

    first, second = once(), once()
    same_state(second[0], first[0], "done twice: the clients' new state", EXACT)
    for what, one, other in zip(
        ("the upload", "numbers", "personal models"), second[1:], first[1:], strict=True
    ):
        finite = {n: v.nan_to_num() if v.is_floating_point() else v for n, v in other.items()}
        ours = {n: v.nan_to_num() if v.is_floating_point() else v for n, v in one.items()}
        same_tree(ours, finite, f"done twice: {what}", EXACT)
