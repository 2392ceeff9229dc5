"""What the words of a run ask for, typed: the parser's namespace ends here."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from yacs.config import CfgNode

from fedvlm.config.aliases import family_aliases
from fedvlm.config.build import flat
from fedvlm.config.families import NOT_OWN, OWN, PEFT_WORDS, peft_words
from fedvlm.config.read import find_config
from fedvlm.core.errors import fold
from fedvlm.job.flags import by_name, method_of_rule, parse

# One of these says whose images they are; without any they are in memory.
_IMAGES = ("DATASET.NAME", "DATASET.ROOT", "FED.FEDERATION", "FED.SITE_FILE", "FED.SITES_AT")
# Methods without steps, and settings that they refuse or that their proposed number is without.
_IN_CLOSED_FORM, _OF_STEPS = ("AFL", "ZeroShot"), (
    "FED.FINETUNE_EPOCHS", "FED.AGGREGATOR", "FED.SERVER_")
_RATE, _HEAD = "OPTIM.LR", "PEFT.HEAD"


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


def next_command(
    asked: Request, flags: Sequence[str], cfg: CfgNode, origins: Mapping[str, str]
) -> str:
    """Return the command that does what a run was asked for, but with other flags; to be pasted.

    Another method in ``flags`` takes over no setting of the former one (``OWN``), wherever it was
    given, but for the learning rate that was typed where ``flags`` ask for a head and name none;
    what the former's own file says of the protocol becomes pairs. The tag goes with the settings
    that it names.

    Args:
        asked: of a run that has ended.
        flags: of ``results["next"]``.
        cfg, origins: of the run.

    Returns:
        The command; empty where the images are in memory, which no command has.
    """
    if not (asked.dataset or asked.dataset_config_file or asked.images or asked.demo
            or any(key in asked.given for key in _IMAGES)):
        return ""
    step = Request.of(parse(list(flags)))
    gone, pairs = {"RESUME", *step.flags}, dict(asked.pairs)
    if step.trainer:
        if asked.trainer_config_file:
            file = str(find_config(asked.trainer_config_file, "trainers"))
            pairs = {key: str(value) for key, value in flat(cfg).items()
                     if origins[key] == file} | pairs
        own = {key for key in {*pairs, *asked.flags} if _is_own(key)
               or step.trainer in _IN_CLOSED_FORM and key.startswith(_OF_STEPS)}
        kept_rate = {key for key in own if _meant(key) == _RATE and key in asked.given
                     and _HEAD in step.flags}  # who gives one for a head gives it for the next
        gone |= own - kept_rate | ({"TAG"} if own else set()) | {"DRAFT", "TRAINER.NAME"}
        asked = replace(asked, trainer=step.trainer, trainer_config_file="", method="")
    kept = {key: value for key, value in asked.flags.items() if key not in gone}
    words = [word for key, value in pairs.items() if not {key, _meant(key)} & gone
             for word in (key, value)] + list(step.opts)
    return shlex.join(_words(replace(
        asked, flags={**kept, **step.flags}, flag_names={**asked.flag_names, **step.flag_names},
        opts=tuple(words))))


def _meant(key: str) -> str:
    """Return the key of ours that a key of the CoOp family sets."""
    alias = family_aliases().get(key)
    return key if alias is None else alias.target


def _is_own(key: str) -> bool:
    """Tell whether a key is a setting of the method, not of the protocol."""
    return key.startswith("TRAINER.") or _meant(key).startswith(OWN) and _meant(key) not in NOT_OWN


def _words(asked: Request) -> list[str]:
    """Return the words of a command that asks for this."""
    table, pairs, words = by_name(), list[str](), ["fedvlm", "run"]
    whole = {"--dataset": asked.dataset, "--dataset-config-file": asked.dataset_config_file,
             "--images": asked.images, "--trainer": asked.trainer, "--method": asked.method,
             "--trainer-config-file": asked.trainer_config_file}
    words += ["--demo"] if asked.demo else []
    words += [word for flag, value in whole.items() if value for word in (flag, value)]
    words += ["--seeds", *map(str, asked.seeds)] if asked.seeds else []
    keys = dict.fromkeys(key for key, _ in PEFT_WORDS.values())
    chosen = {k: v for k, v in asked.flags.items() if k in keys and asked.flag_names[k] == "--peft"}
    words += ["--peft", peft_words(*(chosen[key] for key in keys))] if len(chosen) == 3 else []
    for key, value in asked.flags.items():
        if key in chosen:
            continue
        flag = table.get(fold(asked.flag_names[key]))
        if flag is None or flag.key != key:  # of a plan, or of --model
            pairs += [key, value]
        elif flag.kind == "switch":
            words += [flag.names[0] + ("" if fold(value) == "true" else f"={value}")]
        else:
            words += [flag.names[0], value]
    pairs += asked.opts
    return words + (["--opts", *pairs] if pairs else [])
