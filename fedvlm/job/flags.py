"""The flags of a run, as one table, and what becomes of a command line's words.

A row says the flag's spellings, the config key that it sets, and a line of help. The main job, the
sweep, the features and ``fedvlm config`` all read it.

``--peft prompt+lora`` is one flag for the three keys that say what is trained:

========= ================================================================ ===================
word      what is trained                                                  sets
========= ================================================================ ===================
prompt    a text context (CoOp)                                            PEFT.TEXT prompt
text-lora LoRA inside the text tower                                       PEFT.TEXT lora
feature   an adapter on the image feature                                  PEFT.VISUAL feature
lora      LoRA inside the image tower                                      PEFT.VISUAL lora
adapter   adapters in the image tower: two a block, or one a stage         PEFT.VISUAL adapter
head      a linear classifier that starts as the template's text features  PEFT.HEAD linear
========= ================================================================ ===================

What is not named is off: text none, visual none, head text. ``prompt`` and ``head`` exclude each
other. Sizes stay keys: PEFT.RANK, ALPHA, TARGETS, BLOCKS, WIDTH, N_CTX, LORA_AVG; so
do CTX_INIT, CSC and LN.
"""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedvlm.config.engines import ENDED
from fedvlm.config.families import PEFT_WORDS
from fedvlm.config.option import literal
from fedvlm.console.parser import BeforePairs, Loose, MoreNumbers, Parser, Switch, number_words
from fedvlm.core.errors import ConfigError, did_you_mean, fold, nearest

FORKS = ("FedTV", "FedOTP", "FedPGP", "PromptFL")  # whose authors' scripts share many flags


@dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        names: spellings; the first is shown in the help. Case, dash and underscore do not matter.
        help: one line.
        group: heading in the help; "" is that of spellings of other projects, at the end.
        key: config key it sets; ``TRAINER.*.KEY`` is the chosen trainer's own.
        dest: attribute of the namespace, for flags that are no config key.
        kind: ``value`` (one word), ``switch`` (on, or an explicit true/false), ``many`` (whole
            numbers), ``names`` (words of one key), ``opts`` (KEY VALUE pairs).
        metavar: how the value is shown.
        idle_note: what to say where the chosen trainer lacks the key and its authors' scripts give
            the flag; without it the flag is an error there.
        idle_for: the trainers for which ``idle_note`` is true.
        idle_values: (trainer, the one value that is true of it here); another is an error.
    """

    names: tuple[str, ...]
    help: str
    group: str = ""
    key: str = ""
    dest: str = ""
    kind: str = "value"
    metavar: str = "X"
    idle_note: str = ""
    idle_for: tuple[str, ...] = FORKS
    idle_values: tuple[tuple[str, str], ...] = ()


def _flag(group: str, key: str, names: str, help_: str, metavar: str = "X", **more: Any) -> Flag:
    """Return a row of the table; without a config key the first name is the ``dest``."""
    spelled = tuple(names.split())
    dest = "" if key else spelled[0].removeprefix("--").replace("-", "_")
    return Flag(spelled, help_, group, key, **{"dest": dest, "metavar": metavar} | more)


def _switch(group: str, key: str, names: str, help_: str) -> Flag:
    return _flag(group, key, names, help_, kind="switch")


_METHODS = "TRAINER.*."  # keys of the chosen method's own
_FORKS = (
    "--transforms", "--head", "--imbalance-train", "--split-client", "--model", "--source-domains",
    "--target-domains", "--iid", "--useall", "--no-train", "--load-epoch",
    "--repeat-rate", "--test-batch-size", "--momentum", "--optim", "--weight-decay", "--gamma",
    "--eval-only", "--model-dir",
)
# Words that say themselves what is wrong, and flags to which authors' scripts give an empty word.
_BLANK = {"opts", "TRAINER.*.CTX_INIT", "DATASET.SOURCE_DOMAINS", "DATASET.TARGET_DOMAINS"}
_OF_METHODS = "options as other projects' scripts spell them (a method's own: fedvlm config METHOD)"
_JOB, _FED, _TRAIN, _MODEL, _ENGINE, _RUN, _OTHERS = (
    "What to run", "Federation", "Training", "Backbone", "Engine", "Run and output",
    "More flags, and spellings used by other projects",
)  # fmt: skip

_TRANSPORT = "{flag} has no effect: {trainer} has no transport"
_UNUSED = "{flag} has no effect: the published code of {trainer} never uses it"

FLAGS: tuple[Flag, ...] = (
    _flag(_JOB, "DATASET.ROOT", "--root --data-root",
          "folder that contains the data sets, or a feature pack", "DATA/"),
    _flag(_JOB, "", "--dataset", "dataset by name: configs/datasets/NAME.yaml", "NAME"),
    _flag(_JOB, "", "--dataset-config-file", "dataset by file", "FILE"),
    _flag(_JOB, "", "--images", "your own images: a folder, or a table of files", "FOLDER"),
    _flag(_JOB, "DATASET.CLASSNAMES", "--classnames",
          "class names: in the order of the folders, or folder=name", "A,B"),
    _flag(_JOB, "", "--trainer", "method, or ./file.py:Class (default FedTV)", "NAME"),
    _flag(_JOB, "", "--method", "with --trainer ./net.py:Net: the method that trains that network",
          "NAME"),
    _flag(_JOB, "", "--trainer-config-file --config-file", "the method's settings", "FILE"),
    _flag(_JOB, "TRAINER.*.VARIANT", "--variant", "preset of the method's options", "NAME"),
    _flag(_JOB, "DATASET.NUM_SHOTS", "--shots --num-shots",
          "training images per class; -1: all (default of Dirichlet)", "N"),
    _flag(_JOB, "DATASET.SUBSAMPLE_CLASSES", "--subsample-classes --subsample", "all, base or new"),
    _switch(_JOB, "", "--demo", "built-in data set and tiny backbone; needs no download"),
    _flag(_FED, "FED.CLIENTS", "--num-users --clients --users", "clients", "N"),
    _flag(_FED, "FED.ROUNDS", "--rounds --round",
          "communication rounds; auto: until validation is flat", "N"),
    _flag(_FED, "FED.LOCAL_EPOCHS", "--local-epochs --local-epoch", "epochs per round", "N"),
    _flag(_FED, "FED.FRAC", "--frac", "share of clients per round"),
    _flag(_FED, "FED.PARTITION", "--partition",
          "iid, disjoint, n_classes, dirichlet, superclass_dirichlet, quantity, domain, "
          "domain_dirichlet, natural"),
    _flag(_FED, "FED.BETA", "--beta", "concentration of the Dirichlet split"),
    _flag(_FED, "DATASET.CLIENTS_BY", "--clients-by",
          "column that says whose image it is, or {client}/{class}/*", "COLUMN"),
    _flag(_FED, "DATASET.GROUPS", "--groups --groups-by",
          "column of a patient, slide, video: kept on one side of a split", "COLUMN"),
    _flag(_FED, "DATASET.LABELS", "--labels",
          "several labels per image: a|b cells, or columns of 0 and 1", "COLUMN"),
    _flag(_FED, "DATASET.CAPTIONS", "--captions",
          "captions of images: a column of texts, one a line or a JSON list", "COLUMN"),
    _flag(_FED, "FED.MIN_IMAGES", "--min-images",
          "clients with fewer images do not train (new clients)", "N"),
    _flag(_FED, "FED.HELD_OUT_DOMAIN", "--held-out-domain --held-out",
          "domain left out of training and used for testing", "NAME"),
    _flag(_FED, "FED.FINETUNE_EPOCHS", "--finetune-epochs",
          "epochs of final fine-tuning on each client; 0: none", "N"),
    _flag(_FED, "FED.FINETUNE_TRAIN", "--finetune-train", "own, all, shared, personal, body, head"),
    _flag(_TRAIN, "", "--peft", "what to train: prompt, feature, lora, adapter, head, text-lora",
          "A+B"),
    _flag(_TRAIN, "OPTIM.LR", "--lr", "learning rate"),
    _flag(_TRAIN, "OPTIM.CLASS_WEIGHTS", "--class-weights",
          "what a class counts in the loss: none, balanced, effective", "HOW"),
    _flag(_TRAIN, "DATALOADER.TRAIN_X.BATCH_SIZE", "--batch-size --train-batch-size",
          "training batch", "N"),
    _flag(_TRAIN, "INPUT.VIEWS", "--views",
          "1: one fixed view; n: n augmented ones; 0: always a new one", "N"),
    _flag(_TRAIN, "TEST.TARGETS", "--targets", "also test on these data sets (transfer)", "A,B"),
    _flag(_TRAIN, "TEST.METRICS", "--metric --metrics",
          "further metrics: auroc, top5, f1, ..., or ./file.py:function", "NAME", kind="names"),
    _flag(_TRAIN, "TEST.EVAL_EVERY", "--eval-every", "rounds between evaluations, or auto", "N"),
    _flag(_TRAIN, "SEED", "--seed", "model seed", "N"),
    _flag(_TRAIN, "DATA_SEED", "--data-seed", "seed of the partition and of the drawn shots", "N"),
    _flag(_TRAIN, "", "--seeds", "one run per seed (model and data seed), then a summary table",
          "N", kind="many"),
    _flag(_MODEL, "MODEL.BACKBONE.NAME", "--backbone", "ViT-B/16, RN50, ..., or tiny (embedded)",
          "NAME"),
    _flag(_MODEL, "MODEL.INIT_WEIGHTS", "--weights", "tag, file or local-dir:FOLDER"),
    _flag(_MODEL, "DEVICE", "--device", "auto, cpu, cuda, cuda:N, mps"),
    _switch(_MODEL, "FAST", "--fast", "CUDA: kernels in no fixed order; docs/gpu.md"),
    _switch(_MODEL, "FED.PLAIN", "--plain", "reference implementation: no cache, no packing; slow"),
    _flag(_ENGINE, "FED.ENGINE", "--engine",
          "local: one process; workers: several; flower, sites: real sites"),
    _flag(_ENGINE, "FED.FEDERATION", "--federation", "folder made by fedvlm federation up",
          "FOLDER"),
    _flag(_ENGINE, "FED.WORKERS", "--workers", "number of worker processes", "N"),
    _flag(_ENGINE, "FED.SITES_AT", "--sites-at", "sockets of sites on this machine", "PATH,..."),
    _flag(_ENGINE, "FED.SITE_FILE", "--site-file", "site.json of fedvlm site make --public",
          "FILE"),
    _flag(_RUN, "OUTPUT_DIR", "--output-dir", "folder of all runs", "DIR"),
    _flag(_RUN, "RESUME", "--resume", "run folder to resume", "DIR"),
    _flag(_RUN, "TAG", "--tag", "a label added to the run folder's name"),
    _switch(_RUN, "CONTINUE_ELSEWHERE", "--continue-elsewhere",
            "resume on another kind of device (GPU or CPU) than the folder's"),
    _switch(_RUN, "DRAFT", "--draft", "while developing a method: overwrite its last draft run"),
    _flag(_RUN, "SINKS", "--sinks", "also send each round's numbers to tensorboard, wandb", "A,B"),
    _switch(_RUN, "TEST.KEEP_LOGITS", "--keep-logits", "keep the last round's logits"),
    _switch(_RUN, "", "--dry-run",
            "build everything, run one batch and one aggregation, then stop"),
    _switch(_RUN, "", "--print-config", "print every setting and its source"),
    _flag(_RUN, "", "--opts", "any settings (fedvlm config lists them); --opts can be omitted",
          "KEY VALUE", kind="opts"),
    _switch(_RUN, "", "--debug", "print the traceback of an internal error"),
    _switch(_RUN, "", "--help -h", "this page"),
    _switch("", "", "--version", "the version of fedvlm"),
    # CoOp's and Dassl's habits
    _switch("", "", "--eval-only", "evaluate --model-dir, or the initial model"),
    _flag("", "", "--model-dir", "a run folder", "DIR"),
    _flag("", "", "--load-epoch", "its round, else the newest", "N"),
    _switch("", "", "--no-train", "build everything, then stop"),
    _flag("", "DATASET.SOURCE_DOMAINS", "--source-domains", "all but the target, or empty",
          "NAME", kind="names"),
    _flag("", "DATASET.TARGET_DOMAINS", "--target-domains", "same as --held-out-domain",
          "NAME", kind="names"),
    # spellings of the CoOp family whose meaning is exact
    _switch("", "DATASET.IID", "--iid", "True is --partition iid"),
    _switch("", "DATASET.USEALL", "--useall", "True is --shots -1"),
    _flag("", "DATASET.TEST_SHARE", "--test-share",
          "share of a class for testing, where there are no test images"),
    _flag("", "DATASET.COLUMNS", "--columns", "what the columns of your table mean: classname=dx",
          "A=B"),
    _flag("", "FED.REPEAT_RATE", "--repeat-rate", "share of classes held by all"),
    _flag("", "DATALOADER.TEST.BATCH_SIZE", "--test-batch-size", "test batch"),
    _flag("", "OPTIM.NAME", "--optim --optimizer", "sgd, adam or adamw"),
    _flag("", "OPTIM.MOMENTUM", "--momentum", "SGD's momentum"),
    _flag("", "OPTIM.WEIGHT_DECAY", "--weight-decay", "weight decay"),
    _flag("", "OPTIM.GAMMA", "--gamma", "learning-rate factor of a schedule's step"),
    _flag("", "TRAINER.*.RANK", "--bottleneck --rank", "rank of the low-rank prompt factors"),
    _flag("", "TRAINER.*.N_CTX", "--n-ctx", "context tokens"),
    _flag("", "TRAINER.*.NUM_PROMPT", "--num-prompt --num-prompts", "prompts per class",
          idle_note="{flag} has no effect: {trainer} here has its own number of prompts (FedOTP 2, "
                    "PromptFL 1)", idle_for=("FedOTP", "PromptFL"), idle_values=(("FedOTP", "2"),)),
    _flag("", "TRAINER.*.AVG_PROMPT", "--avg-prompt", "averaged prompts",
          idle_note="{flag} has no effect: {trainer} here shares one prompt (FED.PERSONAL decides "
                    "for files of the CoOp family)", idle_values=(("FedOTP", "1"),)),
    _flag("", "TRAINER.*.EPS", "--eps", "entropic regularisation of a transport",
          idle_note=_TRANSPORT),
    _flag("", "TRAINER.*.GAMMA", "--top-percent", "transported mass", idle_note=_TRANSPORT),
    _flag("", "TRAINER.*.ITERS", "--max-iter", "transport iterations", idle_note=_TRANSPORT),
    _flag("", "TRAINER.*.THRESH", "--thresh", "change that ends a transport",
          idle_note="{flag} has no effect: FedOTP's transport here takes all iterations "
                    "(--max-iter), FedPGP and FedTV have none"),
    _flag("", "TRAINER.*.OT", "--ot", "kind of transport",
          idle_note="{flag} has no effect: FedOTP's transport is COT, FedPGP and FedTV have none",
          idle_values=(("FedOTP", "COT"),)),
    _flag("", "TRAINER.*.CTX_INIT", "--ctx-init", "words that initialise the context",
          idle_note="{flag} has no effect: {trainer} here starts at random",
          idle_values=tuple((name, "") for name in FORKS)),
    _flag("", "TRAINER.*.NUM_DOMAIN", "--num-domain", "domains",
          idle_note="{flag} has no effect: the data set says its domains"),
    _flag("", "TRAINER.*.FEATURE", "--feature", "compare with the feature map", idle_note=_UNUSED),
    _flag("", "TRAINER.*.ALPHA", "--alpha", "a method's own weight", idle_note=_UNUSED),
    _flag("", "TRAINER.*.LOGITS2", "--logits2", "second logits", idle_note=_UNUSED),
    _flag("", "INPUT.TRANSFORMS", "--transforms", "accepted; see --views", "NAME", kind="names"),
    _flag("", "MODEL.HEAD.NAME", "--head", "accepted; has no effect"),
    _switch("", "DATASET.IMBALANCE_TRAIN", "--imbalance-train",
            "False only; see --partition dirichlet"),
    _switch("", "DATASET.SPLIT_CLIENT", "--split-client", "False only; see --partition domain"),
    _flag("", "", "--model", "fedavg, FedOTP, FedPGP or FedTV", "NAME", dest="rule"),
    _flag("", "TRAINER.*.TEMP", "--temp", "temperature of the contrastive loss"),
    _flag("", "TRAINER.*.MU", "--mu", "weight of a method's own loss",
          idle_note=_UNUSED, idle_for=("FedTV", "FedOTP", "PromptFL")),
)  # fmt: skip

_DEVICE = "does not exist here; use --device cuda:{0}"
_DATA = "does not exist here; --root DATA/ holds known data sets, --images FOLDER your own images"
_OUTPUT = "does not exist here; use --output-dir {DIR}"
REFUSED: dict[str, str] = {  # {word}: what was typed behind the flag, else this word
    **dict.fromkeys(("--gpu", "--gpus", "--gpu-id", "--device-id", "--cuda"), _DEVICE),
    **dict.fromkeys(("--data", "--data-dir", "--data-path", "--dataset-path"), _DATA),
    **dict.fromkeys(("--logdir", "--save-dir", "--output", "--out", "--exp-dir"), _OUTPUT),
    **dict.fromkeys(("--epochs", "--epoch", "--num-epochs", "--max-epoch"),
                    "is one of two things here: --rounds {N} for communication rounds, or "
                    "--local-epochs {N} for the epochs of a client in a round"),
    "--learning-rate": "is called --lr here: --lr {0.01}",
    **dict.fromkeys(("--bs", "--local-bs"), "is called --batch-size here: --batch-size {N}"),
    "--wd": "is called --weight-decay here: --weight-decay {0.0005}",
    **dict.fromkeys(("--algorithm", "--algo"), "is called --trainer here: --trainer {NAME}"),
    **dict.fromkeys(("--arch", "--model-name"), "is called --backbone here: --backbone {NAME}"),
    "--non-iid": "does not exist here; use --partition dirichlet --beta 0.3 (smaller: more "
                 "different clients), or --partition disjoint",
    **dict.fromkeys(("--bf16", "--fp16", "--half", "--amp"),
                    "does not exist here; use --opts MODEL.PREC bf16"),
    "--pack": "is of fedvlm features, which writes a pack; to read one: --root {FILE}",
    "--name": "does not exist here; use --tag {NAME}",
    "--workers-at": ENDED["FED.WORKERS_AT"],
    "--token-file": ENDED["FED.TOKEN_FILE"],
}


OFF = {"PEFT.TEXT": "none", "PEFT.VISUAL": "none", "PEFT.HEAD": "text"}


def peft_keys(value: str) -> dict[str, str]:
    """Return the config keys that the words of ``--peft`` set (``ConfigError``: wrong ones)."""
    keys: dict[str, str] = {}
    by: dict[str, str] = {}
    for word in (w.strip().lower().replace("_", "-") for w in value.split("+")):
        if word not in PEFT_WORDS:
            raise ConfigError(
                f"unknown --peft value '{word}'{did_you_mean(word, PEFT_WORDS)} "
                f"({', '.join(PEFT_WORDS)}; "
                "combine with +: prompt+lora)"
            )
        key, setting = PEFT_WORDS[word]
        if key in keys and by[key] != word:
            raise ConfigError(f"--peft {value}: {by[key]} and {word} both set {key}; keep one")
        keys[key], by[key] = setting, word
    if "head" in by.values() and "PEFT.TEXT" in keys:
        raise ConfigError(
            f"--peft {value}: a linear head has no text side; drop head or {by['PEFT.TEXT']}"
        )
    return OFF | keys


def parse(argv: Sequence[str]) -> Namespace:
    """Return what the words of the main job say.

    The namespace holds every ``dest`` of the table (``dataset``, ``seeds``, ``dry_run``, ...),
    ``flags`` (config key or ``TRAINER.*.KEY`` to the word typed), ``flag_names`` (the same keys to
    the flag's spelling) and ``opts`` (a list of alternating keys and values).

    Raises:
        ConfigError: unknown flags, missing or surplus values; one line each.
    """
    return _parser().parse_args(argv)


# --model of the forks -> our method; "": the one of --trainer
RULES = {"fedavg": "", "fedotp": "FedOTP", "fedpgp": "FedPGP", "fedtv": "FedTV"}
# --trainer of authors' scripts -> (our method, what it does)
AUTHORS_NAMES = {
    "coop": ("PromptFL", "CoOp runs as PromptFL, which averages CoOp's context over clients (to "
             "use the authors' file: --trainer ./coop.py:CoOp)"),
    "glpot": ("FedOTP", "GLP_OT runs as FedOTP (the authors' file: --trainer ./GLP_OT.py:GLP_OT)"),
    "clip": ("ZeroShot", "CLIP runs as ZeroShot: nothing is trained"),
    "zeroshotclip": ("ZeroShot", "ZeroshotCLIP runs as ZeroShot: nothing is trained"),
}


def method_of_rule(rule: str, trainer: str) -> str:
    """Return our method for ``--model RULE --trainer NAME`` of a fork's script.

    Raises:
        ConfigError: a rule that the forks do not have, or one that is a method by another name.
    """
    if fold(rule) not in RULES:
        from fedvlm.models.load.names import COOP_NAMES, TINY  # start-up: for a mistake only

        near = nearest(rule, [*RULES, TINY, *COOP_NAMES])
        if near and near not in RULES:
            raise ConfigError(f"--model {rule}: a backbone is chosen with --backbone {near}")
        ours = {"fedprox": "FedProx --peft prompt", "local": "LocalOnly --peft prompt"}
        way = ours.get(fold(rule), f"NAME{did_you_mean(rule, RULES)}")
        raise ConfigError(
            f"--model {rule} does not exist here; choose the method with --trainer {way}"
        )
    if ".py" in trainer:  # the file is the method
        return trainer
    method = AUTHORS_NAMES.get(fold(trainer), (trainer, ""))[0]
    if method and fold(rule) == "fedavg" and method in RULES.values():
        raise ConfigError(
            f"--model fedavg --trainer {trainer}: {method} here keeps a part of its prompt with "
            f"each client; use --model {method}, or --trainer PromptFL for FedAvg of a prompt"
        )
    return RULES[fold(rule)] or trainer or "PromptFL"


def add_flags(parser: Parser, shown: bool = True, grid: bool = False) -> None:
    """Add the flags of a run, but for spellings that the parser has already.

    Args:
        parser: of a verb. See ``parse`` for what the flags leave in its namespace.
        shown: whether its help page says what each does; else it names them.
        grid: whether further numbers may follow one, which is then ``0.01,0.1``.
    """
    parser.set_defaults(flags={}, flag_names={}, opts=[])
    parser.refused = REFUSED
    groups: dict[str, Any] = {}
    parser.compact |= {_OF_METHODS} if shown else set()
    parser.blank |= _BLANK
    taken = set(parser.spellings())
    for flag in FLAGS:
        names = [name for name in flag.names if fold(name) not in taken]
        if not names or (flag.dest == "help" and not shown):
            continue
        taken |= {fold(name) for name in names}
        fork = flag.key.startswith(_METHODS) or flag.names[0] in _FORKS
        title = flag.group or (_OF_METHODS if fork else _OTHERS)
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        listed = shown and names[0] == flag.names[0]
        text = flag.help if listed else argparse.SUPPRESS
        parser.alias(_add(groups[title], flag, names[0], text, grid), names[1:])
        if not listed:
            parser.further.append(names[0])


def add_opts(parser: Parser) -> None:
    """Take words without a flag as ``opts``: KEY VALUE pairs."""
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE", help=argparse.SUPPRESS)
    parser.checks += [pairs, find_lone_model]


def find_lone_model(values: Namespace) -> list[str]:
    """Return the mistake of a model that no flag asks to evaluate, if there is one."""
    flags = [values.spelling[dest] for dest in ("model_dir", "load_epoch")
             if dest in values.spelling and not values.eval_only]
    return [f"{flags[0]} says what --eval-only evaluates: add --eval-only, or drop {flags[0]} (a "
            "run that was stopped goes on with the same command)"] if flags else []


def pairs(values: Namespace) -> list[str]:
    """Return the mistake of a word that stands alone or of a number for a key, if there is one."""
    glued = next((w for w in values.opts[::2] if re.match(r"[A-Z_]+\.[A-Z_.]+=", w)), "")
    if glued:
        return [f"'{glued}': a key and its value are two words here: {glued.replace('=', ' ', 1)}"]
    number = next((w for w in values.opts[::2] if type(literal(w)) in (int, float)), "")
    if len(values.opts) % 2 == 0 and not number:
        return []
    from fedvlm.job.kinds import flag_for  # start-up: NumPy, for a mistake only

    last = values.opts[-1]
    names = [name for flag in FLAGS for name in flag.names]
    if last.isdigit() and "--seed" in values.words:
        return [f"'{last}' has no value; for several seeds use --seeds, such as --seeds 1 2"]
    if number:
        return [f"'{number}' stands where a key should: a flag of a run has one value; fedvlm "
                "sweep runs several, such as --lr 0.01 0.1"]
    near = "" if last.isupper() else flag_for(last) or did_you_mean(last, names)
    return [f"'{last}' has no value; words without a flag are KEY VALUE pairs"
            f"{near}"]


def by_name() -> dict[str, Flag]:
    """Return the folded spelling of every flag, aliases included."""
    return {fold(name): flag for flag in FLAGS for name in flag.names}


@cache
def _parser() -> Parser:
    """Return the main job's parser: a sweep reads thousands of command lines."""
    parser = Parser(prog="fedvlm")
    add_flags(parser)
    add_opts(parser)
    return parser


def _add(group: Any, flag: Flag, name: str, text: str, grid: bool) -> argparse.Action:
    """Add a row of the table to a group of a parser."""
    more: dict[str, Any] = {"dest": flag.dest or flag.key, "help": text}
    if flag.key:
        more["default"] = argparse.SUPPRESS
    if flag.kind == "switch":
        return group.add_argument(name, action=_KeySwitch if flag.key else Switch, **more)
    if flag.kind in ("many", "opts"):
        more |= {"nargs": "+", "metavar": (flag.metavar, flag.metavar), "default": []}
        return group.add_argument(name, action=_Numbers if flag.kind == "many" else Loose, **more)
    if flag.kind == "names":
        more |= {"nargs": "+", "metavar": (flag.metavar, flag.metavar)}
        return group.add_argument(name, action=_Names, **more)
    if grid and flag.key:
        return group.add_argument(name, action=_KeyNumbers, nargs="+",
                                  metavar=(flag.metavar, flag.metavar), **more)
    action = _Key if flag.key else _Peft if flag.dest == "peft" else "store"
    more = {"metavar": flag.metavar, "default": ""} | more
    return group.add_argument(name, action=action, **more)


class _Key(argparse.Action):
    """A flag of a config key, which is its ``dest``: the word as typed, and the spelling."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Namespace, values: Any,
        option: str | None = None,
    ) -> None:
        keys = self.keys(values)
        namespace.flags |= keys
        namespace.flag_names |= dict.fromkeys(keys, option)

    def keys(self, values: Any) -> dict[str, str]:
        """Return the config keys that the flag's words set."""
        return {self.dest: values}


class _Names(_Key, BeforePairs):
    """Several words for one config key: ``a b`` or ``a,b``."""

    def keys(self, values: Any) -> dict[str, str]:
        return {self.dest: ",".join(values)}


class _KeyNumbers(_Names, MoreNumbers):
    """A flag of a config key that may have several numbers in a sweep."""


class _KeySwitch(_Key, Switch):
    """A switch of a config key; what is neither True nor False is for the config to refuse."""

    def keys(self, values: Any) -> dict[str, str]:
        return {self.dest: values[0] if values else "True"}


class _Peft(_Key):
    """One flag, three keys."""

    def keys(self, values: Any) -> dict[str, str]:
        return peft_keys(values)


class _Numbers(BeforePairs):
    """Whole numbers, each once: ``1 2 3``, ``1,2,3`` or ``1-3``."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Namespace, values: Any,
        option: str | None = None,
    ) -> None:
        numbers = [part for word in values for part in number_words(word)]
        if not all(n.isascii() and n.isdigit() for n in numbers) or not numbers:
            raise ConfigError(f"{option} expects whole numbers, got '{' '.join(values)}'")
        if len({int(n) for n in numbers}) < len(numbers):
            raise ConfigError(f"{option} contains a number twice: {' '.join(values)}")
        setattr(namespace, self.dest, [int(n) for n in numbers])
