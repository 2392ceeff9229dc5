"""What is searched: the same optimiser space for every method, and the knobs of its card.

Optimiser ``sgd`` or ``adamw``; a learning rate for each role that the method trains (``peft.
role_of``), 0.002 to 20 for sgd and a tenth of that for adamw, by orders of magnitude; local epochs
1, 2 or 4. A card that fixes ``OPTIM.NAME`` (plain steps) has one rate. What a plan sets itself is
fixed: a plan with ``local-epochs: 2``, whose tables hold the local work equal, tunes none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedvlm.config.federation import EPOCHS, STEPS
from fedvlm.config.knobs import Knob

NAME, LR = "OPTIM.NAME", "OPTIM.LR"
OPTIMISERS = ("sgd", "adamw")
RATES, ADAPTIVE = (0.002, 20.0), 0.1  # of sgd; adamw's are this many times those
LOCAL_EPOCHS = ("1", "2", "4")
Params = dict[str, Any]  # key -> a number, or a word of choices


@dataclass(frozen=True)
class Space:
    """A method's search space.

    Attributes:
        knobs: what is searched, by config key; rates as sgd's.
        rates: those of them that are learning rates.
        constants: keys that the card fixes.
        optimiser: of a space that does not choose one.
    """

    knobs: tuple[Knob, ...]
    rates: tuple[str, ...]
    constants: Mapping[str, str]
    optimiser: str = "sgd"

    def settings(self, params: Params) -> dict[str, str]:
        """Return config keys and words of a point; numbers have three digits."""
        name = params.get(NAME, self.optimiser)
        words = dict(self.constants)
        for knob in self.knobs:
            value = params[knob.key]
            if knob.key in self.rates and name != "sgd":
                value *= ADAPTIVE
            words[knob.key] = str(value) if knob.choices or knob.whole else f"{value:.3g}"
        return words

    def point(self, config: Mapping[str, Any]) -> Params | None:
        """Return where a config lies in the space; None: outside of it."""
        name = str(config[NAME])
        params: Params = {}
        for knob in self.knobs:
            value = config[knob.key]
            if knob.key in self.rates:
                value = (value or config[LR]) / (1.0 if name == "sgd" else ADAPTIVE)
            if knob.choices:
                if str(value) not in knob.choices:
                    return None
                value = str(value)
            elif not knob.low <= value <= knob.high:
                return None
            params[knob.key] = value
        return params if name in OPTIMISERS else None


def space_of(
    knobs: Sequence[Knob], roles: Collection[str], config: Mapping[str, Any],
    fixed: Collection[str],
) -> Space:
    """Return the search space of a method.

    Args:
        knobs: of its card.
        roles: of the tensors that it trains; none: it takes no step.
        config: its defaults, by key.
        fixed: keys that the plan sets.
    """
    constants = {k.key: k.choices[0] for k in knobs if k.fixed and k.key not in fixed}
    shared, rates = [], []
    if roles:
        first, *others = sorted(roles)
        plain = NAME in constants
        keys = [LR, *(() if plain else (f"OPTIM.{role.upper()}.LR" for role in others))]
        if not plain:
            shared.append(Knob(NAME, OPTIMISERS))
        rates = [key for key in keys if key not in fixed]
        shared += [Knob(key, (), *RATES, log=True) for key in rates]
        if STEPS not in fixed:
            shared.append(Knob(EPOCHS, LOCAL_EPOCHS))
    searched = [k for k in (*shared, *knobs) if not k.fixed and k.key not in fixed]
    return Space(tuple(searched), tuple(rates), constants, str(config[NAME]))
