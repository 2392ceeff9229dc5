"""The final personalisation: every client fine-tunes a copy of its model after the last round.

Nothing is uploaded and no saved state changes: it is part of how the last round is evaluated, and a
function of state and seed alone. Any method can be given it (``--finetune-epochs N``); a method
whose definition has one says so in ``Trainer.own_finetune``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedvlm.errors import ConfigError
from fedvlm.federation.groups import FROZEN, PERSONAL, SHARED, Groups
from fedvlm.models import peft

OWN = -1  # FED.FINETUNE_EPOCHS: the method's own number
TAG = "finetune"
# FED.FINETUNE_TRAIN -> groups or roles; "own" is the method's
PARTS: Mapping[str, tuple[str, ...]] = {
    "all": (SHARED, PERSONAL, FROZEN),
    "shared": (SHARED,),
    "personal": (PERSONAL,),
    peft.BODY: (peft.BODY,),
    peft.HEAD: (peft.HEAD,),
}


@dataclass(frozen=True)
class Finetune:
    """One final fine-tuning.

    Attributes:
        epochs: over the client's training split; 0 is none.
        train: groups, or roles (``body``, ``head``, ``fedvlm.models.peft``).
        lr: constant learning rate; 0 is ``OPTIM.LR``.
    """

    epochs: int = 0
    train: tuple[str, ...] = (SHARED, PERSONAL)
    lr: float = 0.0

    def asked(self, cfg: Any) -> Finetune:
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

    def on(self, groups: Groups, owner: str) -> Finetune:
        """Return this with ``train`` as patterns of the names in ``groups``, for ``Context.fit``.

        Raises:
            ConfigError: it would train nothing; ``owner`` is the trainer's name.
        """
        wanted = set(self.train)
        names = [n for n, group in groups.of.items() if {group, peft.role(n)} & wanted]
        if self.epochs and not names:
            raise ConfigError(
                f"the final fine-tuning of {owner} would train nothing: it wants "
                f"{', '.join(self.train)}, the method has {', '.join(groups.of) or 'no tensors'}; "
                "set FED.FINETUNE_TRAIN all, or --finetune-epochs 0"
            )
        return replace(self, train=tuple(map(re.escape, names)))
