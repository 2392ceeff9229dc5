"""Which tensors travel, which stay, which never move: rules on canonical names.

Also which of them the final fine-tuning trains: like the groups, it is settled before round 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import matching
from fedvlm.models.adapt import peft

SHARED, PERSONAL, FROZEN, SERVER = "shared", "personal", "frozen", "server"
GROUPS = (SHARED, PERSONAL, FROZEN, SERVER)
Rule = tuple[str, str]

OWN = -1  # FED.FINETUNE_EPOCHS: the method's own number
TAG = "finetune"
Q_FFL, AGNOSTIC = "q_ffl", "agnostic"  # FED.WEIGHTING by clients' losses
FAIR = (Q_FFL, AGNOSTIC)
BASELINE_SUMS = ("gram", "cross", "count")  # over a site's images: of z z', of z y', of them
SUMS_TELL = ("sums for baselines tell the feature and class of every image that is a site's only "
             "one of its class")
OF_CLIENT, OF_ALL = "a client's only one of its class", "the only one of its class at all sites"
RECEIVED = "received_loss"  # metric of these: a client's loss at the model that it received
# FED.FINETUNE_TRAIN -> groups or roles; "own" is the method's
PARTS: Mapping[str, tuple[str, ...]] = {
    "all": (SHARED, PERSONAL, FROZEN),
    "shared": (SHARED,),
    "personal": (PERSONAL,),
    peft.BODY: (peft.BODY,),
    peft.HEAD: (peft.HEAD,),
}


@dataclass(frozen=True)
class Groups:
    """The group of every trainable tensor: ``shared``, ``personal``, ``frozen`` or ``server``."""

    of: dict[str, str]

    @cached_property
    def shared(self) -> tuple[str, ...]:
        """Names that a client may upload."""
        return self.names(SHARED)

    @cached_property
    def personal(self) -> tuple[str, ...]:
        """Names that never leave their client."""
        return self.names(PERSONAL)

    @cached_property
    def server(self) -> tuple[str, ...]:
        """Names that the server alone moves: clients receive them, and neither train nor send."""
        return self.names(SERVER)

    def names(self, *groups: str) -> tuple[str, ...]:
        """Return the names in any of ``groups``."""
        return tuple(n for n, g in self.of.items() if g in groups)


@dataclass(frozen=True)
class Releases:
    """What leaves a client in a run, and nothing else does: the one list (``Trainer.releases``).

    The server holds every round's updates against it; ``released.json`` and client-level privacy
    are made from it. What a list does not name does not leave. Counts, numbers of evaluations and
    of baselines are the run's to ask for and the owner's to refuse, whatever the method.

    Attributes:
        shared: names of tensors that an upload carries.
        extras: full-match patterns of tensors beside them.
        metrics: full-match patterns of numbers that travel with an upload.
        counts: what is told of a client's images at the start, of every method.
        rows: numbers of an evaluation leave, by client, of every method.
        references: so do numbers of baselines made of its images.
        sums: names of sums over a site's own training images that leave without masks, once, where
            baselines are asked for and its owner allows them.
        single: what of it gives single images away (``Trainer.tells_single``); empty: nothing does.
    """

    shared: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    single: str = ""
    counts: ClassVar[tuple[str, ...]] = ("train", "val", "test", "classes")
    rows: ClassVar[bool] = True
    references: ClassVar[bool] = True

    @property
    def losses(self) -> tuple[str, ...]:
        """Those of ``metrics`` that let a training loss pass, an exact function of images."""
        return tuple(p for p in self.metrics if matching(("loss", "v/loss"), (p,)))

    def telling(self, sums: Collection[str]) -> list[str]:
        """Return what gives single images away, in sentences without a full stop.

        Args:
            sums: names of those of ``sums`` that left.
        """
        return [one for one in (self.single, SUMS_TELL if sums else "") if one]

    def outside(
        self, params: Iterable[str], extras: Iterable[str], metrics: Iterable[str],
        sums: Iterable[str] = (),
    ) -> list[str]:
        """Return the names of tensors and numbers of an answer that the list does not have."""
        stray = [n for n in params if n not in self.shared]
        stray += [n for n in sums if n not in self.sums]
        for names, patterns in ((list(extras), self.extras), (list(metrics), self.metrics)):
            known = set(matching(names, patterns))
            stray += [n for n in names if n not in known]
        return stray


def resolve_groups(names: Iterable[str], rules: Sequence[Rule], owner: str) -> Groups:
    """Give each tensor its one group.

    Args:
        names: canonical names of all trainable tensors.
        rules: ``(regular expression, group)``; an expression must match a whole name.
        owner: the trainer, for messages.

    Raises:
        ConfigError: a tensor matches no rule or rules of two groups, a rule matches nothing,
            or a group is unknown. All of these are named at once.
    """
    names = list(names)
    problems: list[str] = []
    odd = [rule for rule in rules if isinstance(rule, str) or len(rule) != 2]
    if odd:
        raise ConfigError(f"{owner}: {odd[0]!r} in groups is no rule: write pairs, groups = "
                          "((r\"text\\.ctx\", \"shared\"),)")
    for pattern, group in rules:
        if group not in GROUPS:
            problems.append(f"rule '{pattern}' names group '{group}', none of {', '.join(GROUPS)}")
        if not any(re.fullmatch(pattern, n) for n in names):
            problems.append(f"rule '{pattern}' -> {group} matches no trainable tensor")
    of: dict[str, str] = {}
    for name in names:
        matches = {g for pattern, g in rules if re.fullmatch(pattern, name)}
        if len(matches) != 1:
            several = f"rules of several groups ({', '.join(sorted(matches))})"
            problems.append(f"tensor '{name}' matches {several if matches else 'no rule'}")
            continue
        of[name] = matches.pop()
    if problems:
        raise ConfigError(
            f"{owner}: each trainable tensor must match exactly one group: {'; '.join(problems)}"
        )
    return Groups(of)


@dataclass(frozen=True)
class Finetune:
    """The final personalisation: every client fine-tunes a copy after the last round.

    Nothing is uploaded and no saved state changes: it is part of how the last round is evaluated,
    and a function of state and seed alone. Any method can be given it (``--finetune-epochs N``); a
    method whose definition has one says so in ``Trainer.own_finetune``.

    Attributes:
        epochs: over the client's training split; 0 is none.
        train: groups, or roles (``body``, ``head``, ``fedvlm.models.adapt.peft``).
        lr: constant learning rate; 0 is ``OPTIM.LR``.
    """

    epochs: int = 0
    train: tuple[str, ...] = (SHARED, PERSONAL)
    lr: float = 0.0

    def configure(self, cfg: Any) -> Finetune:
        """Return this, with what ``FED.FINETUNE_*`` sets put over it."""
        fed = cfg.get("FED") if hasattr(cfg, "get") else None
        if fed is None:
            return self
        own = int(fed.FINETUNE_EPOCHS) == OWN
        return replace(
            self,
            epochs=self.epochs if own else int(fed.FINETUNE_EPOCHS),
            train=PARTS.get(fed.FINETUNE_TRAIN, self.train),
            lr=float(fed.FINETUNE_LR) or self.lr,
        )

    def select(
        self, groups: Groups, owner: str, role: Callable[[str], str] = peft.role
    ) -> Finetune:
        """Return this with ``train`` as patterns of the names in ``groups``, for ``Context.fit``.

        Args:
            owner: the trainer's name.
            role: ``Trainer.role``.

        Raises:
            ConfigError: it would train nothing.
        """
        parts = set(self.train)
        names = [
            n for n, group in groups.of.items()
            if group != SERVER and {group, role(n)} & parts
        ]
        if self.epochs and not names:
            raise ConfigError(
                f"the final fine-tuning of {owner} would train nothing: it needs "
                f"{', '.join(self.train)}, the method has {', '.join(groups.of) or 'no tensors'}; "
                "set FED.FINETUNE_TRAIN all, or --finetune-epochs 0"
            )
        return replace(self, train=tuple(map(re.escape, names)))
