"""argparse whose mistakes are one sentence, for the verbs with flags of their own."""

from __future__ import annotations

import argparse
from typing import NoReturn

from fedvlm.errors import ConfigError


class VerbParser(argparse.ArgumentParser):
    """Flags of ``fedvlm VERB``.

    Args:
        verb: named first in a mistake.
        usage: shown by ``--help``, and in a mistake unless there is a ``hint``.
        hint: shown in a mistake instead of a long usage.
    """

    def __init__(self, verb: str, usage: str, hint: str = "") -> None:
        super().__init__(prog=f"fedvlm {verb}", add_help=False, allow_abbrev=False, usage=usage)
        self.verb, self.hint = verb, hint or f"usage: {usage}"

    def error(self, message: str) -> NoReturn:
        """Refuse.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{self.verb}: {message} ({self.hint})")
