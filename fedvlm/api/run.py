"""``load``: a run's folder as an object with its models and its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yacs.config import CfgNode

from fedvlm.api import frames
from fedvlm.api.model import Model
from fedvlm.api.rebuild import (
    Rebuilt,
    check_client,
    flag_client,
    kept_models,
    rebuild,
    run_digest,
    run_folder,
    whole_argument,
)
from fedvlm.config.engines import of_parties
from fedvlm.core.errors import ConfigError, DataError, fold
from fedvlm.core.trees import Tree, unstack
from fedvlm.export.trained import Facts, untested_model
from fedvlm.federation.aggregation.client_privacy import own_model_reason, own_model_words
from fedvlm.federation.discovery import NO_TRUST, Trust
from fedvlm.runs.finished import FinishedRun, read_finished
from fedvlm.runs.identity import LABELS
from fedvlm.runs.private import read_private
from fedvlm.runs.verify.answer import (
    answer_facts,
    answer_sentences,
    client_numbers,
    federation_answer,
    goes_around,
    measure_word,
)

if TYPE_CHECKING:
    import pandas

EVERYBODY = "global"


class Run:
    """A run: its models, numbers and settings. Towers are loaded when a model is asked for.

    Args:
        path: the run folder.
        device: see ``load``.
        weights: see ``load``.
        trust: what the caller says of a method's own file.
        round: see ``load``.
    """

    def __init__(
        self, path: Path, device: str = "auto", weights: str = "", trust: Trust = NO_TRUST,
        round: int | None = None,
    ) -> None:
        self.path, self._device, self._weights = path, device, weights
        self._trust, self._round = trust, round

    # ---- models ------------------------------------------------------------------------------
    def client(self, number: int | str) -> Model:
        """Return a client's personal model, as it was evaluated after the newest round.

        Args:
            number: from 0; or, as text, the client's name (``client_names``).

        Raises:
            ConfigError: no such client, or its state is at its site.
            DataError: the model is made of the client's images and the run is not finished, or a
                file is damaged.
        """
        federation = self._rebuilt.federation
        client = check_client(number, federation.plan.clients, self.client_names)
        if of_parties(self._rebuilt.cfg) and self._rebuilt.state.versions.get(client):
            raise ConfigError(
                f"the state of client {client} is stored at the worker or site that made it. Its "
                "owner makes the model there, without images leaving: fedvlm site export SITE.YAML "
                f"{site_run(self.path)}--client {client} --to FOLDER --format safetensors; here "
                "is the global model (--client global)"
            )
        params = self._kept.get(client)
        if params is None:
            state = self._rebuilt.state
            (params,) = [
                unstack(rows, len(ids))[0]
                for ids, rows in federation.personal(state, [client], finetune=False)
            ]
        return self._model(params, f"client {client} of {federation.plan.clients} (from 0)", client)

    def models(self, clients: Iterable[int] | None = None) -> dict[str, Model]:
        """Return the models of clients (default: all) by name, ``client-0``, ...; the global last.

        Raises:
            ConfigError, DataError: see ``client``.
        """
        chosen = range(self.clients) if clients is None else clients
        return {f"client-{c}": self.client(c) for c in chosen} | {EVERYBODY: self.global_model}

    def named(self, word: str) -> dict[str, Model]:
        """Return the models that a word means: a client's number, ``global``, or ``all``.

        Raises:
            ConfigError: it means none.
        """
        if fold(word) == "all":
            return self.models()
        if fold(word) == EVERYBODY:
            return {EVERYBODY: self.global_model}
        number = check_client(flag_client(word, self.client_names), self.clients,
                              self.client_names, " (also: global, all)")
        return {f"client-{number}": self.client(number)}

    @property
    def config(self) -> CfgNode:
        """The run's settings."""
        return self._rebuilt.cfg

    @cached_property
    def global_model(self) -> Model:
        """The shared model: what a new client starts from."""
        federation = self._rebuilt.federation
        return self._model(unstack(federation.shared(self._rebuilt.state), 1)[0], EVERYBODY)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self._rebuilt.federation.plan.clients

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """The clients' names by number, of ``DATASET.CLIENTS_BY`` or ``data={...}``; else empty."""
        return tuple(read_private(self.path)["clients"])

    @property
    def classnames(self) -> tuple[str, ...]:
        """Class names by label."""
        return self._rebuilt.federation.model.classnames

    # ---- numbers -----------------------------------------------------------------------------
    @property
    def metrics(self) -> pandas.DataFrame:
        """A row per round, ``round`` 0 first (``frames.metrics``)."""
        return frames.metrics(self.path)

    @property
    def client_metrics(self) -> pandas.DataFrame:
        """A row per evaluated round and client (``frames.clients``)."""
        return frames.clients(self.path)

    @cached_property
    def record(self) -> FinishedRun | None:
        """The finished run, checked; None before it is finished.

        Raises:
            DataError: the run is damaged; names the file.
        """
        return read_finished(self.path)

    # ---- inside ------------------------------------------------------------------------------
    @cached_property
    def _rebuilt(self) -> Rebuilt:
        return rebuild(self.path, self._device, self._weights, trust=self._trust, only=self._round)

    def _unnoised(self) -> str:
        """Return why privacy of clients leaves out a client's own model; empty: it does not."""
        federation, dp = self._rebuilt.federation, self._rebuilt.cfg.FED.DP
        return own_model_reason(
            federation.trainer, federation.groups, federation.finetuning.epochs
        ) if dp.CLIP and dp.UNIT == "client" else ""

    @cached_property
    def _kept(self) -> dict[int, Tree]:
        """The models that the run saved after its last round; none before that."""
        federation = self._rebuilt.federation
        tuned = federation.finetuning.epochs > 0
        if self._earlier and tuned:
            raise ConfigError(
                f"--round {self._round}: clients' models are fine-tuned after the last round, and "
                "those of earlier rounds are not kept; use --client global, or drop --round"
            )
        if self._earlier or self.record is None:
            return {}
        kept = kept_models(self.path, federation.model.device, self._rebuilt.covered)
        if tuned and not kept:
            raise DataError(
                f"'{self.path / 'models'}' lacks the models after the final fine-tuning "
                "(personal000000, ...): run the same command again under another --tag"
            )
        return kept

    @property
    def _earlier(self) -> bool:
        """Whether an earlier round than the last was asked for."""
        return self._round is not None and self._rebuilt.state.round < int(
            self._rebuilt.cfg.FED.ROUNDS)

    def _model(self, params: Tree, owner: str, client: int | None = None) -> Model:
        federation, facts = self._rebuilt.federation, self._facts(owner, client)
        asked = federation.model.of_clients([] if client is None else [client])
        return Model(federation.trainer, asked, params, owner, facts)

    def _facts(self, owner: str, client: int | None) -> Facts:
        """Return what a card says: the data in words, the model's own accuracy."""
        cfg, metrics, images = self._rebuilt.cfg, dict[str, float](), 0
        fixed: tuple[float, tuple[float, ...]] = (1.0, ())
        state = self._rebuilt.state
        words = f"{cfg.DATASET.NAME}, {cfg.FED.PARTITION} over {cfg.FED.CLIENTS} clients"
        if self.record is not None and not self._earlier:
            last = self.record.last
            rows = {row["client"]: row for row in last.get("clients", ())}
            value = rows.get(client, {}).get("accuracy") if client is not None else (
                last.get(EVERYBODY))
            metrics = {measure_word(last): float(value)} if value is not None else {}
            images = int(rows.get(client, {}).get("n") or 0) if client is not None else 0
            fixed = fixed_of(self.record.results, client)
            if not fixed[1]:
                fixed = (float(rows.get(client, {}).get("temperature") or 1.0), ())
        most = "at most " if cfg.FED.PATIENCE else ""
        notes = [f"round {state.round} of {most}{cfg.FED.ROUNDS}, run folder {self.path.name}"]
        found = self.record.results if self.record and not self._earlier else {}
        if self.record and (federation_answer(found) or goes_around(found)):
            own_facts = [] if client is None else client_numbers(found, self.record.method, client)
            notes += [*own_facts, *answer_facts(found, self.record.method), *answer_sentences(
                self.record.results, self.record.method, command=False)]
        own, spoken = self._unnoised() if client is not None else "", found.get("privacy")
        if own:
            notes.append(f"not covered by the run's privacy guarantee: {own_model_words(own)}")
        elif spoken:
            notes.append(f"privacy: {spoken['words']}")
        return Facts(owner, words, metrics, "", "", tuple(notes), *fixed,
                     bool(cfg.DATASET.CAPTIONS), run_digest(self.path), images,
                     self._untested(client))

    def _untested(self, client: int | None) -> str:
        """Return what a card says of a client without test images; sites keep how many these are.
        """
        if client is None or of_parties(self._rebuilt.cfg):
            return ""
        roster = self._rebuilt.federation.roster
        return untested_model(int(roster.train[client]), int(roster.test[client]))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def fixed_of(
    results: Mapping[str, Any], client: int | None
) -> tuple[float, tuple[float, ...]]:
    """Return a client's temperature and thresholds of a run on sets of labels; else 1 and none."""
    for line in results.get(LABELS, {}).get("clients", ()):
        if line["client"] == client:
            return float(line["temperature"]), tuple(map(float, line["thresholds"]))
    return 1.0, ()


def site_run(path: Path) -> str:
    """Return a run's name as its sites show it, and a blank; empty where none is kept."""
    file = path / "sites" / "run"
    return f"{file.read_text(encoding='utf-8').strip()[:12]} " if file.is_file() else ""


def load(
    folder: str | Path, *, device: str = "auto", weights: str = "", trainer: str = "",
    trust_code: str = "", round: int | None = None,
) -> Run:
    """Return the run that lies in a folder; neither its images nor its command are needed.

    Args:
        folder: a run folder, finished or not (the last line of a run names it).
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        weights: where the backbone's weights are now (a tag, a file, ``local-dir:FOLDER``), if
            they are not where the run found them.
        trainer: the method's own file of a run that was made with one, ``./net.py``; it must be
            the one that the run recorded.
        trust_code: SHA-256 of the method's own file that the folder names: it is a program, and
            runs only with ``trainer`` or this.
        round: the round whose models are wanted, if a state of it is kept; None: the last.

    Raises:
        DataError: no run folder.
        ConfigError: an argument is no word, or ``round`` no number.
    """
    for name, value in (("device", device), ("weights", weights), ("trainer", trainer),
                        ("trust_code", trust_code)):
        if not isinstance(value, str):
            raise ConfigError(f"{name} must be text, not {value!r}")
    if round is not None:
        round = whole_argument("round", round, 0)
    return Run(run_folder(folder), device, weights, Trust(trainer, trust_code), round)
