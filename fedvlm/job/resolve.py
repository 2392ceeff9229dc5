"""From parsed flags to configs: which files, which trainer, one config per seed."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yacs.config import CfgNode

from fedvlm.config.aliases import notes_on_epochs
from fedvlm.config.build import DEFAULT, build_config, flat, unused_keys, yaml_keys
from fedvlm.config.engines import ENDED, of_parties
from fedvlm.config.families import trained_words
from fedvlm.config.federation import AUTO_ROUNDS, HEAD_RATE, MOST_ROUNDS, PATIENCE
from fedvlm.config.keys import default_schema, method_schema
from fedvlm.config.option import Option, Schema
from fedvlm.config.read import find_config, lookup
from fedvlm.config.sections import NATURAL, SKEWED, watches_loss
from fedvlm.core.errors import ConfigError, DataError, did_you_mean, fold
from fedvlm.core.files import read_json, user_path
from fedvlm.data.catalog import canonical_domain, dataset_info
from fedvlm.data.datasets import load_dataset
from fedvlm.data.partition.spec import idle_options
from fedvlm.federation.cards import method_of, split_method, trainer_files
from fedvlm.job.data_choice import DataChoice, OwnData, choose_data, no_dataset
from fedvlm.job.flags import AUTHORS_NAMES, FLAGS
from fedvlm.job.kinds import dataset_of
from fedvlm.job.request import Request
from fedvlm.runs.private import public_value, read_private
from fedvlm.runs.verify.answer import ACCURACY, measure_of

if TYPE_CHECKING:
    from fedvlm.federation.discovery import Trust

COOP, PROMPTFL = "coop", "PromptFL"  # a word of CoOp's world, and its method here
CLASSNAMES_KEY = "DATASET.CLASSNAMES"
_AUTO_NOTE = "--rounds auto"
_AUTO, _AUTO_USUAL = "auto, ", "because the images are your own"  # origins of FED.ROUNDS
_ALL_OWN = ("domain", "iid")  # partitions in which an own set leaves no training image out
_DEPTH = 7  # of a run folder below OUTPUT_DIR
_OWN = "TRAINER.*."  # flags that mean the chosen trainer's own node
_PEFT_TWINS = (f"{_OWN}N_CTX", f"{_OWN}CTX_INIT")  # PromptFL has both as PEFT.*


@dataclass(frozen=True)
class Job:
    """One run to do: its frozen config and where every value comes from."""

    cfg: CfgNode
    origins: dict[str, str]

    @property
    def auto_rounds(self) -> bool:
        """Whether the number of rounds is that of ``--rounds auto``."""
        return self.origins["FED.ROUNDS"].startswith((_AUTO, _AUTO_USUAL))


@dataclass(frozen=True)
class Jobs:
    """What a request comes to: one job per seed, the schema, and remarks for the user."""

    jobs: tuple[Job, ...]
    schema: Schema
    notes: tuple[str, ...]
    request: Request

    @property
    def data_notes(self) -> list[str]:
        """The notes without that on ``--rounds auto``, for a verb that trains no rounds."""
        return [note for note in self.notes if not note.startswith(_AUTO_NOTE)]


def resolve(args: Namespace | Request, *, given: OwnData | None = None) -> Jobs:
    """Read the config files that ``args`` names and merge them with its flags.

    Args:
        args: of ``flags.parse``, or the request that such words come to.
        given: a data set in memory, which ``args`` then need not name.

    Raises:
        ConfigError: anything that is wrong with flags or files, one line per mistake.
    """
    request = _read_names(args if isinstance(args, Request) else Request.of(args))
    return _merged(request, choose_data(request, given))


def _read_names(request: Request) -> Request:
    """Return the request with the names in the file of ``--classnames`` (``DataError``)."""
    word = request.given.get(CLASSNAMES_KEY, "")
    if not word:
        return request
    from fedvlm.data.formats.class_names import read_given  # start-up: for such a file only

    text = read_given(word)
    opts = request.pairs
    if CLASSNAMES_KEY in opts:
        pairs = opts | {CLASSNAMES_KEY: text}
        return replace(request, opts=tuple(w for pair in pairs.items() for w in pair))
    return replace(request, flags={**request.flags, CLASSNAMES_KEY: text})


def _merged(request: Request, data: DataChoice) -> Jobs:
    """Return the jobs of a request on the data that it names."""
    named = request.trainer_config_file
    file = find_config(named, "trainers") if named else None
    spec = _trainer_spec(request, (data.demo, file, data.yaml))
    if file and not request.trainer and _is_coops(file, request):
        spec = COOP
    spec, renamed = AUTHORS_NAMES.get(fold(spec), (spec, ""))
    spec = _with_method(spec, request.method)
    _refuse_unnamed(spec, request)
    trainer = _load(spec)
    schema = method_schema(trainer)
    flags, names, notes = _own_flags(request, trainer.name, schema)
    notes += data.notes
    if file and not renamed and fold(file.parent.name) == COOP and spec == PROMPTFL:
        renamed = AUTHORS_NAMES[COOP][1]
    notes += [renamed] * bool(renamed)
    trainer_yaml = file or lookup(trainer.name, "trainers")
    name = spec if _is_path(spec) else trainer.name
    jobs = []
    for seed_flags in _seeds(request, flags):
        cfg, origins = build_config(
            data.yaml, trainer_yaml, seed_flags, request.opts, schema,
            extra_yamls=[data.demo] if data.demo else [], dataset_keys=data.keys,
            dataset_origin=data.origin,
            flag_names={"SEED": "--seeds", "DATA_SEED": "--seeds"} | names,
        )  # fmt: skip
        cfg.defrost()
        cfg.TRAINER.NAME = name  # one spelling, so that one method has one run folder
        cfg.FED.HELD_OUT_DOMAIN = canonical_domain(cfg.DATASET.NAME, target_domain(cfg))
        check_domains(cfg)
        cfg.DATASET.SOURCE_DOMAINS = cfg.DATASET.TARGET_DOMAINS = ()  # said by the held-out one
        followed = _follow(cfg, origins) + notes_on_epochs(cfg, origins)
        followed += _one_round(cfg, origins, trainer.name, file, data.demo)
        followed += _rounds(cfg, origins, trainer) + _idle(cfg, origins)
        notes += [note for note in followed if note not in notes]
        cfg.freeze()
        jobs.append(Job(cfg, origins))
    if not jobs[0].cfg.DATASET.NAME.strip():
        raise ConfigError(no_dataset())
    _check_output(jobs[0].cfg.OUTPUT_DIR)
    unused = unused_keys(jobs[0].origins, schema)
    if unused:
        notes.append(f"accepted, but without effect: {', '.join(unused)}")
    return Jobs(tuple(jobs), schema, tuple(notes), request)


def run_config(
    path: Path, changes: Mapping[str, str], trust: Trust | None = None, started: bool = False
) -> CfgNode:
    """Return the config of a run folder, with some values changed.

    A key that the folder's config lacks, since it came later, has the value that means what runs
    did before it (``Option.neutral``). Folders are those of the machine that made it, where
    ``private.json`` still says them; it can say no more than the config says without them.

    Args:
        trust: what the command says of a method's own file (``discovery.load_trusted``).
        started: the run itself asks, by a process that it started: its command named the method.

    Raises:
        ConfigError: this fedvlm does not know the method or a key, or the method is a file that
            the command does not name.
        DataError: the folder has no config.
    """
    from fedvlm.federation.discovery import NO_TRUST, load_trusted  # start-up: PyTorch, 2 s

    file = path / "config.yaml"
    private = read_private(path)["config"]
    name = str(yaml_keys(file, default_schema()).get("TRAINER.NAME", ""))
    if public_value("TRAINER.NAME", private.get("TRAINER.NAME")) == name:
        name = str(private["TRAINER.NAME"])
    if not name:
        raise DataError(f"'{file}' names no method: the run folder is damaged, or the run never "
                        "started")
    if started:
        spec, trainer = name, _load(name)
    else:
        spec, trainer = load_trusted(str(path), name, _recorded_code(path), trust or NO_TRUST)
    ended = dict.fromkeys(ENDED, Option("", "of a run of 0.1", neutral=""))
    schema = method_schema(trainer) | ended
    there = yaml_keys(file, schema)
    known = {key: value for key, value in private.items()
             if key in schema and _is_public_form(schema[key], key, value, there.get(key))}
    known |= {"TRAINER.NAME": spec} if spec != name else {}
    known |= {} if started else {"CACHE_DIR": ""}  # a folder names no place where we write
    earlier = {key: option.neutral for key, option in schema.items() if option.neutral is not None}
    return build_config(
        None, None, {**known, **changes}, [], schema, extra_yamls=[file], dataset_keys=earlier,
        dataset_origin="a run of an earlier version",
    )[0]


def _is_public_form(option: Option, key: str, value: Any, shown: Any) -> bool:
    """Say whether a config may show ``shown`` for a value, so that ``private.json`` adds to it."""
    try:
        return bool(option.parse(public_value(key, value)) == option.parse(shown))
    except ValueError:
        return False


def _recorded_code(path: Path) -> str:
    """Return the digest of the method's own file in a run's manifest; empty where it says none."""
    manifest = read_json(path / "manifest.json")
    identity = manifest.get("identity") if isinstance(manifest, dict) else None
    return str(identity.get("trainer", "")) if isinstance(identity, dict) else ""


def _refuse_unnamed(spec: str, request: Request) -> None:
    """Refuse a method's own file that only a config, which is data, names (``ConfigError``)."""
    if _is_path(spec) and not (request.trainer or request.pairs.get("TRAINER.NAME")):
        raise ConfigError(
            f"a config file names a method's own file, {spec}, which is a program: it was not "
            f"run. Read it, and to run it add --trainer {spec}"
        )


def _is_coops(file: Path, request: Request) -> bool:
    """Tell whether a config that names no method stands in CoOp's folder (``CoOp/rn50.yaml``)."""
    named = yaml_keys(file, default_schema()).get("TRAINER.NAME")
    return not named and fold(file.resolve().parent.name) == COOP and (
        "TRAINER.NAME" not in request.pairs)


def target_domain(cfg: CfgNode) -> str:
    """Return the domain left out, by our key or Dassl's (``ConfigError``: several, or two)."""
    targets, out = cfg.DATASET.TARGET_DOMAINS, str(cfg.FED.HELD_OUT_DOMAIN)
    if len(targets) > 1:
        raise ConfigError(
            f"--target-domains {' '.join(targets)}: only one domain can be left out per run; run "
            "once for each"
        )
    if targets and out and fold(out) != fold(targets[0]):
        raise ConfigError(
            f"--target-domains {targets[0]} and FED.HELD_OUT_DOMAIN {out} name different "
            "domains; keep one"
        )
    return str(targets[0]) if targets else out


def check_domains(cfg: CfgNode) -> None:
    """Refuse ``DATASET.SOURCE_DOMAINS`` unless it says what is so anyway (``ConfigError``)."""
    asked, out = cfg.DATASET.SOURCE_DOMAINS, cfg.FED.HELD_OUT_DOMAIN
    if not asked:
        return
    info = dataset_info(cfg.DATASET.NAME)
    names = list(info.domains) if info else []
    if not names:
        raise ConfigError(
            f"--source-domains: the domains of {cfg.DATASET.NAME} are not known before it is read; "
            "give only --target-domains, all others are sources"
        )
    rest = [n for n in names if fold(n) != fold(out)]
    if sorted(map(fold, asked)) != sorted(map(fold, rest)):
        raise ConfigError(
            f"--source-domains {' '.join(asked)}: clients have all domains except the one left "
            f"out, here {', '.join(rest)}; drop the flag, or name the missing one with "
            "--target-domains"
        )


def _load(spec: str) -> Any:
    dataset = "" if _is_path(spec) or method_of(spec) else dataset_of(spec)
    if dataset:
        raise ConfigError(f"unknown trainer '{spec}'; '{spec}' is a data set: --dataset {dataset}; "
                          f"methods are {', '.join(trainer_files())}")
    from fedvlm.federation.discovery import load_trainer  # start-up: PyTorch, 2 s

    return load_trainer(spec)


def _is_path(spec: str) -> bool:
    return ".py" in spec


def _idle(cfg: CfgNode, origins: Mapping[str, str]) -> list[str]:
    """Return notes on what the user typed and the kind of partition does not use."""
    kind, keys = cfg.FED.PARTITION, {o: f"FED.{o.upper()}" for o in idle_options(cfg.FED.PARTITION)}
    if cfg.FED.INDEX_FILE or of_parties(cfg):
        return []
    return [f"{key} {cfg.FED[key[4:]]} has no effect with FED.PARTITION {kind}; it is "
            f"for {', '.join(idle_options(kind)[option])}"
            for option, key in sorted(keys.items())
            if origins.get(key, "").startswith(("flag", "opts")) and cfg.FED[key[4:]]]


def _follow(cfg: CfgNode, origins: dict[str, str]) -> list[str]:
    """Set what follows from other settings where nobody said it; return notes.

    Under the kinds that cut each class among all clients, all training images are used, and of an
    own set also under ``domain`` and ``iid``. With one domain held out the clients are those of the
    other domains.
    """
    notes, fed = [], cfg.FED
    if of_parties(cfg):
        if origins["FED.CLIENTS"] == DEFAULT:
            raise ConfigError("--engine sites needs --num-users N (number of clients of all "
                              "sites together)")
        if origins["FED.UNRELIABLE.QUORUM"] == DEFAULT:
            fed.UNRELIABLE.QUORUM = 1.0
            origins["FED.UNRELIABLE.QUORUM"] = f"because FED.ENGINE is {fed.ENGINE}"
    if fed.HELD_OUT_DOMAIN and origins["FED.PARTITION"] == DEFAULT:
        fed.PARTITION, origins["FED.PARTITION"] = "domain", "because FED.HELD_OUT_DOMAIN is set"
        notes.append("FED.HELD_OUT_DOMAIN: every client belongs to one of the other domains "
                     "(FED.PARTITION domain)")
    by_user = origins["FED.CLIENTS"].startswith("flag") or origins["FED.CLIENTS"].startswith("opts")
    if fed.HELD_OUT_DOMAIN and fed.PARTITION.startswith("domain") and not by_user:
        number = _number_of_domains(cfg)
        if number > 1 and fed.CLIENTS % (number - 1):
            each = 1 if fed.CLIENTS % number else fed.CLIENTS // number
            fed.CLIENTS = each * (number - 1)
            origins["FED.CLIENTS"] = "because FED.HELD_OUT_DOMAIN is set"
            notes.append(f"FED.CLIENTS {fed.CLIENTS}: {each} for each of the {number - 1} domains "
                         f"other than '{fed.HELD_OUT_DOMAIN}'")
    notes += _clients_by(cfg, origins)
    drawn = fed.INDEX_FILE or cfg.DATASET.FEWSHOT_FILE
    natural = fed.PARTITION == NATURAL and cfg.DATASET.CLIENTS_BY
    whole = fed.PARTITION in SKEWED or natural or (_own(cfg) and fed.PARTITION in _ALL_OWN)
    if cfg.DATASET.LABELS and origins["DATASET.NUM_SHOTS"] == DEFAULT:
        cfg.DATASET.NUM_SHOTS, origins["DATASET.NUM_SHOTS"] = -1, "because DATASET.LABELS is set"
    if cfg.DATASET.CAPTIONS:
        notes += _captions(cfg, origins)
    if whole and origins["DATASET.NUM_SHOTS"] == DEFAULT and not drawn:
        cfg.DATASET.NUM_SHOTS = -1
        origins["DATASET.NUM_SHOTS"] = f"because FED.PARTITION is {fed.PARTITION}"
    return notes


def _captions(cfg: CfgNode, origins: dict[str, str]) -> list[str]:
    """Set what images with captions decide where the user says nothing; return a note."""
    why, notes = "because DATASET.CAPTIONS is set", list[str]()
    if origins["DATASET.NUM_SHOTS"] == DEFAULT:
        cfg.DATASET.NUM_SHOTS, origins["DATASET.NUM_SHOTS"] = -1, why
    if origins["PEFT.TEXT"] == DEFAULT and cfg.PEFT.TEXT != "none" and cfg.PEFT.VISUAL != "none":
        cfg.PEFT.TEXT, origins["PEFT.TEXT"] = "none", why
        notes.append(f"captions: the text tower stays frozen, so PEFT.TEXT is none; trained is "
                     f"PEFT.VISUAL {cfg.PEFT.VISUAL} (--peft lora, feature or adapter)")
    return notes


def _clients_by(cfg: CfgNode, origins: dict[str, str]) -> list[str]:
    """Set the partition and the number of clients that DATASET.CLIENTS_BY decides; return notes.

    Raises:
        ConfigError: a partition that deals the images anew, or images at their sites with flags
            or a unit of privacy that need a table, or with simulated attackers.
    """
    fed, column = cfg.FED, cfg.DATASET.CLIENTS_BY
    if of_parties(cfg) and (column or cfg.DATASET.GROUPS):
        raise ConfigError(
            f"FED.ENGINE {fed.ENGINE}: the images are at their sites, and so are their tables: "
            f"drop {'--clients-by' if column else '--groups'}; the parties say it in fedvlm site "
            "make"
        )
    if of_parties(cfg) and fed.HOSTILE:
        raise ConfigError(
            f"FED.HOSTILE {fed.HOSTILE:g}: attackers are simulated, but the clients of this run "
            "are parties with images of their own; drop it, or simulate with --engine local"
        )
    unit = fed.DP.UNIT if fed.DP.CLIP or fed.DP.UNIT != "client" else "image"
    if of_parties(cfg) and unit != "image":
        raise ConfigError(
            f"FED.ENGINE {fed.ENGINE} with FED.DP.UNIT {unit}: over sites only single images can "
            "be hidden, since noise for clients would come from a seed that every site knows, and "
            "a site's list tells no groups: set FED.DP.UNIT image"
        )
    if not column:
        return []
    why = "because DATASET.CLIENTS_BY is set"
    if fed.PARTITION != NATURAL:
        if origins["FED.PARTITION"].startswith(("flag", "opts")):
            raise ConfigError(
                f"--partition {fed.PARTITION} deals the images anew, and --clients-by {column} "
                "says whose they are: drop one of the two"
            )
        fed.PARTITION, origins["FED.PARTITION"] = NATURAL, why
    if origins["FED.CLIENTS"].startswith(("flag", "opts", "the folder")):
        return []
    number = len(load_dataset(cfg).client_names)
    if number == fed.CLIENTS:
        return []
    fed.CLIENTS, origins["FED.CLIENTS"] = number, why
    return [f"--clients-by {column}: {number} clients (FED.PARTITION {NATURAL})"]


def _one_round(
    cfg: CfgNode, origins: dict[str, str], name: str, file: Path | None, demo: Path | None
) -> list[str]:
    """Set one round where nobody gave rounds and the method's own file says one; return a note.

    It is done then if all clients take part; where some may miss round 1, others follow.

    Args:
        name: of the method.
        file: of settings that the user names, in the place of the method's own.
        demo: the config of ``--demo``, whose rounds are nobody's wish.
    """
    fed, own, key = cfg.FED, lookup(name, "trainers"), "FED.ROUNDS"
    late = fed.UNRELIABLE
    if (
        origins[key] not in (DEFAULT, str(demo)) or key in yaml_keys(file, default_schema())
        or yaml_keys(own, default_schema()).get(key) != 1
        or fed.FRAC < 1 and not fed.FIRST_ROUND_ALL
        or any((late.DROPOUT, late.DEADLINE, late.JOIN, late.AWAY, late.BUFFER))
    ):
        return []
    fed.ROUNDS, origins[key] = 1, f"because {name} is done after one round"
    return [f"{name} is done after one round: FED.ROUNDS 1; --rounds N sets another number"]


def _rounds(cfg: CfgNode, origins: dict[str, str], trainer: Any) -> list[str]:
    """Put numbers in the place of ``--rounds auto``, the default of own images; return a note.

    A linear head or feature adapter then trains at ``HEAD_RATE``, where nobody gives a learning
    rate. Over sites a number of rounds is agreed on beforehand, so that the default is one there.
    The end of a method that guarantees privacy looks at no loss.
    """
    fed = cfg.FED
    if origins["FED.PATIENCE_LOSS"] == DEFAULT and _is_private(trainer):
        why = f"because {trainer.name} guarantees privacy"
        fed.PATIENCE_LOSS, origins["FED.PATIENCE_LOSS"] = False, why
    elif fed.PATIENCE_LOSS and _is_private(trainer):
        raise ConfigError(f"FED.PATIENCE_LOSS True: {trainer.name} guarantees privacy, which "
                          "losses on validation images go around; leave it out")
    if fed.ROUNDS != AUTO_ROUNDS and not (
        _own(cfg) and origins["FED.ROUNDS"] == DEFAULT and not of_parties(cfg)
    ):
        return []
    usual = origins["FED.ROUNDS"] == DEFAULT
    why = _AUTO_USUAL if usual else f"{_AUTO}{origins['FED.ROUNDS']}"
    fed.ROUNDS, origins["FED.ROUNDS"] = MOST_ROUNDS, why
    if origins["FED.PATIENCE"] == DEFAULT:
        fed.PATIENCE, origins["FED.PATIENCE"] = PATIENCE, "because FED.ROUNDS is auto"
    what, rate = measure_of(cfg), ""
    part = _on_features(cfg, trainer) if origins["OPTIM.LR"] == DEFAULT else ""
    if what == ACCURACY and part:
        cfg.OPTIM.LR, origins["OPTIM.LR"] = HEAD_RATE, f"because FED.ROUNDS is auto, for a {part}"
        rate = f"; the {part} has learning rate {HEAD_RATE:g} (--lr sets another)"
    flat_by = f"{what} is"
    if fed.PATIENCE_LOSS and watches_loss(flat(cfg).__getitem__):
        flat_by = f"{what} and loss are"
    return [f"{_AUTO_NOTE}: training stops when the clients' validation {flat_by} flat, after "
            f"{MOST_ROUNDS} rounds at most; --rounds N sets a number{rate}"]


def _is_private(trainer: Any) -> bool:
    """Say whether a method has a privacy guarantee of its own."""
    from fedvlm.federation.trainer import Trainer  # start-up: PyTorch, 2 s

    return getattr(trainer, "privacy", Trainer.privacy) is not Trainer.privacy


def _on_features(cfg: CfgNode, trainer: Any) -> str:
    """Return the one part that a method trains by SGD on features, in words; '': another."""
    part = {"head": "head", "feature": "feature adapter"}.get(trained_words(flat(cfg)), "")
    if not part or cfg.OPTIM.NAME != "sgd":
        return ""
    from fedvlm.federation.peft_trainer import takes_peft  # start-up: PyTorch, 2 s

    return part if takes_peft(trainer) else ""


def _own(cfg: CfgNode) -> bool:
    """Return whether the data set is the user's own: one that the catalog does not know."""
    return bool(cfg.DATASET.NAME) and dataset_info(cfg.DATASET.NAME) is None


def _number_of_domains(cfg: CfgNode) -> int:
    """Return how many domains a set has; 0 where it cannot be read, which the run then says."""
    info = dataset_info(cfg.DATASET.NAME)
    if info is not None and info.domains:
        return len(info.domains)
    try:
        return len(load_dataset(cfg).domain_names)
    except (ConfigError, DataError):
        return 0


def _check_output(word: str) -> None:
    """Refuse a run folder where the folder of all runs is wanted: it would get runs inside."""
    path = user_path(word)
    if (path / "manifest.json").is_file():
        above = path.parents[_DEPTH - 1] if len(path.parts) > _DEPTH else "its OUTPUT_DIR"
        raise ConfigError(f"OUTPUT_DIR {word} is a run folder, but runs get folders below it; give "
                          f"{above}, or --resume {word} to resume that run")


def _trainer_spec(request: Request, files: tuple[Path | None, ...]) -> str:
    """Return the trainer's name: opts, else flag, else the strongest file that names one."""
    schema = default_schema()
    named = [yaml_keys(path, schema).get("TRAINER.NAME") for path in files]
    usual = schema["TRAINER.NAME"].default
    words = [request.pairs.get("TRAINER.NAME"), request.trainer, *named, usual]
    return next(w for w in words if isinstance(w, str) and w.strip())


def _with_method(spec: str, method: str) -> str:
    """Return the name of a method over a network: ``./net.py:Net+FedAS`` (else ``ConfigError``)."""
    if not method:
        return spec
    if not _is_path(spec):
        raise ConfigError(
            f"--method {method}: --trainer {spec} is no network; give the file of a "
            f"ModuleTrainer (--trainer ./net.py:Net --method {method}), or --trainer {method} alone"
        )
    if split_method(spec)[1]:
        raise ConfigError(f"--method {method}: --trainer {spec} names a method already; drop one")
    return f"{spec}+{method}"


def _own_flags(
    request: Request, trainer: str, schema: Schema
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Return flags with ``TRAINER.*.`` replaced by the trainer's node, their names, and notes."""
    idle = {f.key: f for f in FLAGS if f.idle_note}
    flags: dict[str, str] = {"TRAINER.NAME": request.trainer} if request.trainer else {}
    names: dict[str, str] = {"TRAINER.NAME": "--trainer"}
    notes: list[str] = []
    mistakes: list[str] = []
    for key, value in request.flags.items():
        real = key.replace(_OWN, f"TRAINER.{trainer.upper()}.")
        spelling = request.flag_names[key]
        if key == f"{_OWN}CTX_INIT" and fold(value) == "false":
            value = ""  # of the forks' scripts: no words
        if real != key and real not in schema:
            usual = key.replace(_OWN, "PEFT.")
            if key in _PEFT_TWINS and trainer == PROMPTFL:
                flags[usual], names[usual] = value, spelling
            elif key in idle and trainer in idle[key].idle_for:
                only = dict(idle[key].idle_values).get(trainer, value)
                if fold(only) == fold(value):
                    notes.append(idle[key].idle_note.format(trainer=trainer, flag=spelling))
                else:
                    mistakes.append(
                        f"flag {spelling} {value}: {trainer} here has {spelling} {only or False} "
                        "only; other values: its authors' file, --trainer REPO/trainers/x.py:X"
                    )
            else:
                mistakes.append(_lacks(spelling, real, trainer, schema))
            continue
        flags[real], names[real] = value, spelling
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return flags, names, notes


def _lacks(spelling: str, key: str, trainer: str, schema: Schema) -> str:
    node = key.rpartition(".")[0] + "."
    options = [k.removeprefix(node) for k in schema if k.startswith(node)]
    return (
        f"flag {spelling} sets {key}, but {trainer} has no such option"
        f"{did_you_mean(key.removeprefix(node), options)} (it has: {', '.join(options) or 'none'})"
    )


def _seeds(request: Request, flags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the flags of each run: ``--seeds`` sets both seeds, a ``--data-seed`` stays."""
    if not request.seeds:
        return [dict(flags)]
    if "SEED" in flags or "SEED" in request.pairs:
        raise ConfigError("give one seed or --seeds, not both")
    return [{"DATA_SEED": str(s)} | dict(flags) | {"SEED": str(s)} for s in request.seeds]
