"""What the server sees: its clients by number, its own images, and a place per client.

Of their personal models it sees what ``Measure`` asks for: ``Row``s of numbers.

Whatever a server cannot name it cannot read: there is no way from here to a client's images, labels
or features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedvlm.core import rng
from fedvlm.core.errors import FedvlmError
from fedvlm.core.rows.memory import MemoryStore
from fedvlm.core.rows.store import Form, RowStore, form_of
from fedvlm.core.trees import State, Tree, expand, nbytes, stack_states
from fedvlm.federation.aggregation.arrival import INDEX_BYTES, Rows
from fedvlm.federation.aggregation.rules import AggregateSpec
from fedvlm.federation.aggregation.server_optim import ServerOptimSpec, server_step
from fedvlm.federation.groups import Groups
from fedvlm.federation.local import sent
from fedvlm.federation.optim import OptimSpec
from fedvlm.models.vlmodel import VLModel

Row = dict[str, int | float | None]  # one client's numbers, its id under ``client``
MOVED = "group.moved"  # server slot: the round in which each tensor of the group server last moved


@dataclass(frozen=True)
class Roster:
    """What may be known of the clients, by id.

    Attributes:
        train, val, test: numbers of samples, ``[N]``.
        classes: training samples of each class, ``[N, C]``.
        site: where each client is, ``[N]``, from 0 (``FED.SITES``).
        unseen: clients that never work (``FED.UNSEEN_CLIENTS``).
    """

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    classes: np.ndarray
    site: np.ndarray
    unseen: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Return the number of clients, those that never work included."""
        return len(self.train)

    @property
    def members(self) -> Sequence[int]:
        """The clients that take part in the run, ascending."""
        everyone, out = range(len(self)), set(self.unseen)
        return [c for c in everyone if c not in out] if out else everyone

    @property
    def present(self) -> Sequence[int]:
        """The members with any image, ascending: a forgotten one (``fedvlm forget``) has none."""
        some = (self.train > 0) | (self.val > 0) | (self.test > 0)
        return self.members if some.all() else [c for c in self.members if some[c]]


@dataclass(frozen=True)
class Measure:
    """What is asked of personal models: plain values, so that the question may travel.

    Attributes:
        split: ``test`` or ``val``: each client's own samples.
        finetuned: after the last round: with the final fine-tuning, where there is one.
        cross: also on the test set of all base classes, and on unseen classes.
        away: also on the domain that no client holds.
        keep_logits: keep the logits per sample, there where the models are.
        calibration: also how sure the models are of their own samples: ``nll`` and ``ece``.
        confusion: also how many images of which class were taken for which.
        answers: also which images are classified right (``scores.right_row``). A site tells it
            where it tells logits.
    """

    split: str = "test"
    finetuned: bool = True
    cross: bool = False
    away: bool = False
    keep_logits: bool = False
    calibration: bool = False
    confusion: bool = False
    answers: bool = False

    def plain(self) -> dict[str, Any]:
        """Return it as it travels; ``answers``, which sites need not know, only where asked."""
        return {k: v for k, v in asdict(self).items() if k != "answers" or v}


@dataclass(frozen=True)
class Question:
    """Which personal models are asked for, in plain values and downloads: it may travel.

    Attributes:
        round: after which they are.
        clients: whose.
        downloads: what each of them receives then.
        versions: the round in which each last worked, 0 for never.
        tune: with the final fine-tuning.
    """

    round: int
    clients: Sequence[int]
    downloads: Mapping[int, Tree]
    versions: Mapping[int, int]
    tune: bool = False


def only_numbers(rows: Iterable[Row], clients: Sequence[int]) -> list[Row]:
    """Return the rows of ``clients`` in their order, if nothing but numbers is in them.

    Raises:
        FedvlmError: a value that is no number, or a client without its row.
    """
    found = {}
    for row in rows:
        for name, value in row.items():
            if value is not None and type(value) not in (int, float):
                raise FedvlmError(
                    f"the measured row of client {row.get('client')} holds '{name}' as "
                    f"{type(value).__name__}; only numbers may leave the site of a personal "
                    "model"
                )
        found[row["client"]] = row
    missing = [c for c in clients if c not in found]
    if missing:
        raise FedvlmError(f"no personal model was measured for clients {missing}")
    return [found[c] for c in clients]


class Proxy(Protocol):
    """Images of the server's own."""

    @property
    def source(self) -> str:
        """Where they come from, for results and tables."""

    @property
    def labels(self) -> Tensor:
        """Labels ``[P]`` int64, -1 where not known; read only by methods that ask for labels."""

    def __len__(self) -> int:
        """Return their number."""

    def pixels(self, positions: Tensor) -> Tensor:
        """Return normalised pixels ``[n, 3, H, W]`` of the images at ``positions [n]``."""


class Held:
    """What the server keeps for each client: its last model, whether it was served, ...

    Written in ``aggregate``, read in ``download``; saved beside the server's state.

    Args:
        store: the rows; a new one by default.
        versions: the round in which each client's were written.
    """

    def __init__(
        self, store: RowStore | None = None, versions: Mapping[int, int] | None = None
    ) -> None:
        self.store = MemoryStore() if store is None else store
        self.versions, self._new = dict(versions or {}), dict[int, State]()

    def get(self, client: int) -> State:
        """Return the slots of a client; none before the first ``put``."""
        if client in self._new or client not in self.versions:
            return self._new.get(client, {})
        ((_, state),) = self.store.get([client], [self.versions[client]])
        return {slot: {n: v[0] for n, v in tree.items()} for slot, tree in state.items()}

    def put(self, client: int, state: State) -> None:
        """Keep ``state`` (no client axis) for a client instead of what was there."""
        self._new[client] = state

    def commit(self, round_: int) -> dict[int, int]:
        """Store what was put, as version ``round_``; return all versions as they are then."""
        alike: dict[Form, list[int]] = {}
        for client, state in sorted(self._new.items()):
            form = form_of({s: expand(t, 1) for s, t in state.items()})
            alike.setdefault(form, []).append(client)
        self.store.begin({c: self.versions.get(c, -1) for c in self._new})
        for ids in alike.values():
            self.store.put(round_, ids, stack_states([self._new[c] for c in ids]))
        self.store.seal(round_)
        self.versions |= dict.fromkeys(self._new, round_)
        self._new = {}
        return dict(self.versions)


class Downloads(dict[int, Tree]):
    """What each client receives.

    Attributes:
        sizes: bytes by client and tensor, as they travel.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, dict[str, int]] = {}


@dataclass(frozen=True)
class ServerContext:
    """What a method's server side may use.

    Attributes:
        model: the frozen model.
        groups: group of every trainable tensor.
        start: the untrained tensors, no client axis.
        round: 1-based; 0 before the first.
        rounds: of the whole run.
        seed: the model seed.
        epochs: local epochs of a plain fit.
        optim: what ``OPTIM`` says.
        roster: sizes and class counts of all clients.
        held: a place per client.
        proxy: the server's own images; None where it has none.
        aggregator: what ``FED.AGGREGATOR`` and its keys say.
        server_optim: what ``FED.SERVER_OPTIM`` and its keys say.
        report: what ``log`` collects.
        cuts: tensors that ``cut`` made, by id, with their bytes as they travel.
    """

    model: VLModel
    groups: Groups
    start: Tree
    round: int
    rounds: int
    seed: int
    epochs: int
    optim: OptimSpec
    roster: Roster
    held: Held
    proxy: Proxy | None = None
    aggregator: AggregateSpec = AggregateSpec()
    server_optim: ServerOptimSpec = ServerOptimSpec()
    report: dict[str, Any] = field(default_factory=dict)
    cuts: dict[int, tuple[Tensor, int]] = field(default_factory=dict)

    def stream(self, purpose: str, client: int = -1) -> torch.Generator:
        """Return a generator for ``purpose`` in this round (of one client, if given)."""
        return rng.stream(self.seed, purpose, self.round, client)

    def cut(
        self, tree: Tree, *, rows: Mapping[str, Rows] | None = None,
        ranks: Mapping[str, int] | None = None,
    ) -> Tree:
        """Return ``tree`` (no client axis) with some rows of some tensors, the others zero.

        For ``download``: only those rows are sent, and counted.

        Args:
            rows: by name; their ``index`` is ``[n]``, -1 is none.
            ranks: by the name of a LoRA: its first components.

        Raises:
            FedvlmError: names, rows or ranks that are not there.
        """
        one = expand(tree, 1)
        values, places, told = sent.cut_upload(
            one, {n: Rows(r.index[None], r.axis) for n, r in (rows or {}).items()},
            {site: [rank] for site, rank in (ranks or {}).items()},
        )
        out = dict(tree)
        for name, where in places.items():
            axis, count = where.along(one[name]), int(told[name])
            said = sent.refusal(name, count, one[name].shape[axis])
            if said:
                raise FedvlmError(f"a download would hold {said}")
            out[name] = where.fill(torch.zeros_like(one[name]), values[name])[0]
            row = tree[name].numel() // max(1, tree[name].shape[axis - 1])
            size = count * (row * tree[name].element_size() + INDEX_BYTES)
            self.cuts[id(out[name])] = out[name], size
        return out

    def sizes(self, tree: Tree) -> dict[str, int]:
        """Return the bytes of each tensor of a download as it travels."""
        return nbytes(tree) | {n: self.cuts[id(v)][1] for n, v in tree.items()
                               if id(v) in self.cuts}

    def server_step(self, server: State, target: Tree) -> State:
        """Return the server's state with ``w`` moved to ``target`` by ``FED.SERVER_OPTIM``.

        Raises:
            DivergedError: the new model is not finite.
        """
        return server_step(self.server_optim, server, target)

    def log(self, name: str, value: Any) -> None:
        """Put a JSON value into this round's ``aggregation`` of ``metrics.jsonl``."""
        self.report[name] = value


def count_roster(splits: Sequence[Any], labels: Tensor) -> Roster:
    """Return the roster of clients with ``splits`` (``train``, ``val``, ``test`` index arrays).

    Args:
        splits: gone through once, so that they may be made one by one.
        labels: ``[n]`` int64, of all samples; the largest is the last class.
    """
    values = labels.cpu().numpy()
    width = int(values.max(initial=-1)) + 1
    clients = len(splits)
    train, val, test, site = np.zeros((4, clients), dtype=np.int64)
    counts = np.zeros((clients, width), dtype=np.int64)
    for k, split in enumerate(splits):
        train[k], val[k], test[k] = len(split.train), len(split.val), len(split.test)
        own = values[np.asarray(split.train, dtype=np.int64)]
        counts[k] = np.bincount(own[own >= 0], minlength=width)  # -1: without a label
    return Roster(train, val, test, counts, site)
