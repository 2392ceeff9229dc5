"""Which tensors travel, which stay, which never move: rules on canonical names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedvlm.errors import ConfigError

SHARED, PERSONAL, FROZEN = "shared", "personal", "frozen"
Rule = tuple[str, str]


@dataclass(frozen=True)
class Groups:
    """The group of every trainable tensor: ``shared``, ``personal`` or ``frozen``."""

    of: dict[str, str]

    @property
    def shared(self) -> tuple[str, ...]:
        """Names that a client may upload."""
        return self.names(SHARED)

    @property
    def personal(self) -> tuple[str, ...]:
        """Names that never leave their client."""
        return self.names(PERSONAL)

    def names(self, *groups: str) -> tuple[str, ...]:
        """Return the names in any of ``groups``."""
        return tuple(n for n, g in self.of.items() if g in groups)


def resolve(names: Iterable[str], rules: Sequence[Rule], owner: str) -> Groups:
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
    for pattern, group in rules:
        if group not in (SHARED, PERSONAL, FROZEN):
            problems.append(f"rule '{pattern}' names group '{group}' (shared, personal or frozen)")
        if not any(re.fullmatch(pattern, n) for n in names):
            problems.append(f"rule '{pattern}' -> {group} matches no trainable tensor")
    of: dict[str, str] = {}
    for name in names:
        found = {g for pattern, g in rules if re.fullmatch(pattern, name)}
        if len(found) != 1:
            said = f"rules of several groups ({', '.join(sorted(found))})" if found else "no rule"
            problems.append(f"tensor '{name}' matches {said}")
            continue
        of[name] = found.pop()
    if problems:
        raise ConfigError(
            f"{owner}: each trainable tensor must match exactly one group: {'; '.join(problems)}"
        )
    return Groups(of)
