"""``train`` and what can be trained: the main job from Python."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from fedvlm.api.arguments import TrainArguments
from fedvlm.api.run import Run
from fedvlm.config.read import config_names
from fedvlm.console.screen import complain
from fedvlm.core.errors import ConfigError, did_you_mean, fold
from fedvlm.data.memory.given import MemorySet
from fedvlm.federation.cards import card, headline, trainer_files
from fedvlm.job.flags import FLAGS, Flag, by_name, parse
from fedvlm.job.inputs import GivenInputs
from fedvlm.job.request import Request
from fedvlm.job.resolve import resolve
from fedvlm.job.run import run_job

PATTERN = "custom_"  # configs that show how to describe data of one's own
# Flags that end without a run, or make several.
NOT_HERE = {
    "seeds": "call train once for each seed", "dry_run": "use `fedvlm run --dry-run`",
    "print_config": "use `fedvlm run --print-config`", "help": "use help(fedvlm.train)",
    "version": "use fedvlm.__version__", "eval_only": "use `fedvlm evaluate`",
    "no_train": "use `fedvlm run --no-train`", "model_dir": "use fedvlm.load",
    "load_epoch": "use fedvlm.load", "debug": "errors are raised here",
}


def train(
    *, data: Any = None, classnames: Sequence[str] | None = None,
    columns: Sequence[Any] | None = None, name: str = "", **flags: Unpack[TrainArguments],
) -> Run:
    """Train one method on one data set and return the run; a finished one is only loaded.

    Args:
        data: a data set in memory instead of one on disk. Clients come as a list of datasets or as
            a mapping of names to datasets; one dataset is dealt by ``partition``. A dataset is a
            ``torch.utils.data.Dataset`` of (image, label), a Hugging Face ``datasets.Dataset``, or
            a list of pairs; images are PIL images, uint8 or float arrays ``[H, W, 3]`` or tensors
            ``[3, H, W]``, not normalised. In place of a dataset a tuple ``(train, test)`` or
            ``(train, val, test)``; with training images only ``test_share=0.3`` draws test images
            by ``data_seed``. All training images are used unless ``shots`` is given.
        classnames: of ``data``, by label, or of ``images``, in the order of the folders; not needed
            where the datasets or folders name their classes.
        columns: of ``data``, where rows are not pairs: ``("img", "fine_label")``.
        name: of ``data`` in results and paths; ``memory`` by default.
        flags: those of ``fedvlm run``, with underscores: ``root="DATA/"``, ``dataset="eurosat"``,
            ``images="photos/"``, ``demo=True``, ``trainer="FedTV"``, ``num_users=10``,
            ``rounds=20``, ``shots=16``, ``lr=0.01``, ``peft="prompt+lora"``, ``seed=1``,
            ``backbone="ViT-B/16"``, ``device="cpu"``, ``output_dir="output"``, ... A word may be a
            number, a path or a text; what may have several takes a list. None is as if not given.
            ``opts={"OPTIM.MOMENTUM": 0.9}`` sets any key of ``fedvlm config``.

    Raises:
        ConfigError: an unknown flag, or values that cannot work together.
        DataError: missing, broken or inconsistent data; of ``data``, client and index are named.
        DivergedError: a number is not finite.
    """
    words: dict[str, Any] = dict(flags)
    if data is None and flags.get("images") and classnames is not None:
        words["classnames"], classnames = json.dumps(list(classnames)), None
    request = Request.of(parse(run_words(words)))
    given = _given(request, data, classnames, columns, name)
    jobs = resolve(request, given=given)
    complain(*jobs.notes, prefix="note")
    (job,) = jobs.jobs
    done = run_job(job, jobs.request, GivenInputs(given) if given else None)
    assert done is not None  # noqa: S101 (NOT_HERE: it trains)
    return Run(done[1], str(job.cfg.DEVICE))


def _given(
    request: Request, data: Any, classnames: Sequence[str] | None, columns: Sequence[Any] | None,
    name: str,
) -> MemorySet | None:
    """Return the data set in memory; None where one on disk is meant."""
    if data is None:
        words = {"classnames": classnames, "columns": columns, "name": name or None}
        alone = [word for word, value in words.items() if value is not None]
        if alone:
            raise ConfigError(f"{alone[0]} needs data in memory: add data=...")
        return None
    keys = request.given
    others = [word for word, value in (
        ("dataset", request.dataset),
        ("dataset_config_file", request.dataset_config_file),
        ("images", request.images), ("demo", request.demo), ("root", "DATASET.ROOT" in keys),
    ) if value]
    if others:
        remedy = '; backbone="tiny" is embedded' if "demo" in others else ""
        raise ConfigError(f"data= already defines the images: drop {others[0]}{remedy}")
    return MemorySet(data, classnames, columns, name, keys)


def run_words(flags: Mapping[str, Any]) -> list[str]:
    """Return keyword arguments as the words of a command line.

    Raises:
        ConfigError: an unknown name, or one that makes no run; all of them at once.
    """
    known, words, mistakes = by_name(), list[str](), list[str]()
    opts = flags.get("opts") or {}
    for name, value in flags.items():
        flag = known.get(fold(f"--{name}"))
        if flag is None:
            names = {n.removeprefix("--").replace("-", "_") for f in FLAGS for n in f.names}
            mistakes.append(f"train() has no argument '{name}'{did_you_mean(name, sorted(names))}")
        elif flag.dest in NOT_HERE:
            mistakes.append(f"train() has no argument '{name}': {NOT_HERE[flag.dest]}")
        elif inspect.isclass(value) and flag.dest == "trainer":
            mistakes.append(
                f"trainer={value.__name__} is a class: save it in a file, whose bytes become part "
                "of the run's identity (in a notebook by %%writefile mine.py as the cell's first "
                f"line), and pass trainer=\"./mine.py:{value.__name__}\"")
        elif value is not None and flag.dest != "opts":
            words += _words(flag, value)
    if not isinstance(opts, Mapping):
        mistakes.append("opts must be a mapping: opts={'OPTIM.MOMENTUM': 0.9}")
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return [*words, *(str(word) for pair in opts.items() for word in pair)]


def _words(flag: Flag, value: Any) -> list[str]:
    name = flag.names[0]
    if flag.kind == "switch":
        if not isinstance(value, bool):
            raise ConfigError(f"{name.removeprefix('--')} must be True or False, not {value!r}")
        return [f"{name}={str(value).lower()}"]
    several = isinstance(value, Iterable) and not isinstance(value, str)
    text = ",".join(map(str, value)) if several else str(value)
    return [f"{name}={text}"]


def trainers() -> dict[str, str]:
    """Return every method by name, with a line on what it is; ``fedvlm list NAME`` has its card."""
    return dict(headline(card(path), stem) for stem, path in trainer_files().items())


def datasets() -> list[str]:
    """Return the data sets that ``train(dataset=...)`` and its ``root`` have by name, sorted."""
    return [n for n in config_names("datasets") if not n.startswith(PATTERN)]
