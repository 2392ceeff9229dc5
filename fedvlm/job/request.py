"""What the words of a run ask for, typed: the parser's namespace ends here."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedvlm.core.errors import fold
from fedvlm.job.flags import method_of_rule


@dataclass(frozen=True)
class Request:
    """What a run is asked for; nothing is written into it.

    Attributes:
        dataset, dataset_config_file, images: the data set by name, by file, or as a folder.
        trainer, trainer_config_file: the method, and a file with its settings.
        method: what trains the network that ``trainer`` names.
        demo: the built-in set on the tiny backbone.
        seeds: one run each; none: the seeds of the config.
        flags: config key, or ``TRAINER.*.KEY``, to the word typed.
        flag_names: the same keys to the flag's spelling.
        opts: alternating keys and values.
        dry_run, eval_only, no_train: instead of training.
        model_dir, load_epoch: what ``eval_only`` evaluates.
    """

    dataset: str = ""
    dataset_config_file: str = ""
    images: str = ""
    trainer: str = ""
    trainer_config_file: str = ""
    demo: bool = False
    seeds: tuple[int, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)
    flag_names: Mapping[str, str] = field(default_factory=dict)
    opts: tuple[str, ...] = ()
    dry_run: bool = False
    eval_only: bool = False
    no_train: bool = False
    model_dir: str = ""
    load_epoch: str = ""
    method: str = ""

    @classmethod
    def of(cls, args: Namespace) -> Request:
        """Return what a parser with the flags of a run read (``flags.add_flags``)."""
        trainer = method_of_rule(args.rule, args.trainer) if args.rule else args.trainer
        flags, names = dict(args.flags), dict(args.flag_names)
        if fold(args.rule) == "fedavg" and ".py" in trainer:  # a file that its fork shares whole
            flags.setdefault("FED.PERSONAL", "none")
            names.setdefault("FED.PERSONAL", "--model")
        return cls(
            str(args.dataset or ""), args.dataset_config_file, args.images, trainer,
            args.trainer_config_file, bool(args.demo), tuple(args.seeds), flags,
            names, tuple(args.opts), bool(args.dry_run), bool(args.eval_only),
            bool(args.no_train), args.model_dir, args.load_epoch, args.method,
        )

    @property
    def pairs(self) -> dict[str, str]:
        """``opts`` by key."""
        return dict(zip(self.opts[::2], self.opts[1::2], strict=False))

    @property
    def given(self) -> dict[str, str]:
        """Every config key that flags and ``opts`` set, as typed."""
        return {**self.flags, **self.pairs}
