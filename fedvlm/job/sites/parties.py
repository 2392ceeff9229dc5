"""A run over parties with data of their own (``FED.ENGINE sites``): what its coordinator does.

The driver is the ordinary job: folder, console, metrics, results, the way back in. It knows class
names, counts and its own public images. The sites are met before anything is built, since counts
come from them; what they told lies in ``sites/`` of the run's folder, with the run's name there.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.console.screen import complain
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.data.datum import PARTS
from fedvlm.data.own.site import SiteFile, read_site
from fedvlm.distributed.facts import digest
from fedvlm.distributed.flower.carrier import Flower
from fedvlm.distributed.flower.place import read_place
from fedvlm.distributed.schema import COUNTS, by, client, hexes, record, text
from fedvlm.distributed.server.membership import GONE
from fedvlm.distributed.server.policy import Policy
from fedvlm.distributed.server.readmission import Wish, read_wishes, readmit
from fedvlm.distributed.server.remote import RemoteEngine
from fedvlm.distributed.server.requests import Requests
from fedvlm.distributed.sockets.sites import SiteSockets
from fedvlm.evaluation.evaluator import Ask
from fedvlm.federation.rounds import FedState
from fedvlm.job.build import Built, chunk_of
from fedvlm.job.engines.states import RUN
from fedvlm.job.inputs import Parting, ServerInputs
from fedvlm.job.sites.party import config_plain
from fedvlm.job.sites.sums import engine_of

PLACE = "sites"  # in the run's folder
NAME, MET, FRAMES = "run", "met.json", "frames.json"
_NETWORK = re.compile(r"[^/]*:\d{1,5}")
_FIRST = 1.0  # seconds after which those who are not are named
_SITE = {"data": hexes, "clients": by(client, record(COUNTS))}
_MET = by(text("[^/]+", 200), lambda v: any(
    record(fields)(v) for fields in (_SITE, _SITE | {"key": text("[!-~]+", 200)})))
Tell = Callable[[str], None]
Sites = Flower | SiteSockets  # carriers that a run opens and closes


def sites_of(cfg: CfgNode) -> Sites:
    """Return the carrier to the sites of a run: a federation's, or sockets."""
    if cfg.FED.FEDERATION:
        return Flower(read_place(user_path(cfg.FED.FEDERATION)), _tell)
    return SiteSockets(socket_paths(cfg))


def _tell(words: str) -> None:
    complain(words, prefix="note")


def socket_paths(cfg: CfgNode) -> list[Path]:
    """Return the paths of ``FED.SITES_AT`` (``ConfigError``: an address of the network)."""
    words = [word.strip() for word in cfg.FED.SITES_AT.split(",") if word.strip()]
    for word in words:
        if _NETWORK.fullmatch(word):
            raise ConfigError(
                f"--sites-at {word}: sites on other machines are reached only through "
                "Flower (--federation FOLDER; docs/deployment.md); on this machine give the path "
                "of the socket made by fedvlm site serve SITE.YAML --listen PATH"
            )
    return [user_path(word.removeprefix("unix:")) for word in words]


def check_sites(cfg: CfgNode) -> None:
    """Refuse what a run over sites lacks or cannot do, before data are read (``ConfigError``)."""
    behind = cfg.FED.FEDERATION
    if behind:
        place = read_place(user_path(behind))
        if not all(site.owner or site.away for site in place.sites):
            raise ConfigError(
                f"the sites of '{behind}' have no data of their own: use --engine flower, which "
                "gives them clients of the run, or start sites with data: fedvlm federation up "
                "SITE.YAML..."
            )
        if not place.sites:
            raise ConfigError(f"no site is admitted to '{behind}' yet: admit one with fedvlm "
                              "federation admit")
        if cfg.FED.SITES_AT:
            raise ConfigError("--federation cannot be combined with --sites-at: drop one of them")
    wanted = (("SITES_AT", "--federation FOLDER: the sites admitted by fedvlm federation (or "
               "--sites-at PATH,...: sockets of sites on this machine)"),
              ("SITE_FILE", "--site-file FILE: the coordinator's site file, with the class names "
                            "(fedvlm "
               "site make --public)"))
    lacks = [words for key, words in wanted
             if not cfg.FED[key] and not (behind and key != "SITE_FILE")]
    if lacks:
        raise ConfigError("\n".join(f"--engine sites needs {words}" for words in lacks))
    paths = socket_paths(cfg)
    if len(set(paths)) < len(paths):
        raise ConfigError(f"--sites-at {cfg.FED.SITES_AT}: a path is given twice")


@dataclass
class Parties:
    """The sites of a run, met; see ``engines.base.ClientSide``."""

    engine: RemoteEngine
    carrier: Sites
    inputs: ServerInputs
    wishes: list[Wish] = field(default_factory=list)  # clients to be taken in again

    @property
    def ask(self) -> Ask:
        """See ``ClientSide.ask``."""
        return self.engine.template

    def employ(self, built: Built, folder: Path, tell: Tell) -> None:
        """Join a run to its sites; what they told, and its name there, are kept in its folder.

        Raises:
            ConfigError: a site differs in what they must have in common, or another process gave
                this run a name while this one waited for sites.
            DataError: a file of ``sites/`` is damaged or cannot be written.
        """
        place = folder / PLACE
        with files.explain_errors(place):
            place.mkdir(exist_ok=True)
        if not (place / NAME).is_file():
            files.write_text(place / NAME, self.engine.run_id + "\n")
        if run_name(folder) != self.engine.run_id:
            raise ConfigError("another process started this run in the meantime: the same "
                              "command resumes it")
        self.wishes = read_wishes(place)
        join_sites(self.engine, built)
        built.notes += left_out(built.cfg)
        files.write_json(place / MET, self.engine.members.welcomes())
        self.engine.say = tell

    def resume(self, state: FedState | None) -> FedState | None:
        """See ``ClientSide.resume``: with the clients that are taken in again."""
        if state is None or not self.wishes:
            return state
        return readmit(self.engine, self.wishes, state)


@contextlib.contextmanager
def meet_parties(
    cfg: CfgNode, path: Path, without: Parting | None = None
) -> Iterator[Parties]:
    """Meet the sites of a run, and hang up after it.

    Args:
        path: of the run's folder, which need not be there yet.
        without: a run of before, and the site that leaves it.

    Raises:
        ConfigError: nobody is there, a site refuses or differs, or clients have no site.
        DataError: the coordinator's site file, or what is kept of the sites, is damaged.
    """
    file = read_site(user_path(cfg.FED.SITE_FILE))
    check_file(file)
    if file.dataset != cfg.DATASET.NAME:
        raise ConfigError(f"DATASET.NAME {cfg.DATASET.NAME}: '{cfg.FED.SITE_FILE}' is "
                          f"for '{file.dataset}'; drop the key")
    before = read_met(path) or (without.met if without else {})
    carrier = sites_of(cfg)
    engine = engine_of(cfg)(
        carrier, config_plain(cfg), policy=policy_of(cfg), run_id=run_name(path),
        say=_tell,
    )
    try:
        await_sites(carrier, engine.say, float(cfg.FED.ASK.REACH))
        engine.meet(int(cfg.FED.CLIENTS), 0.0, before)
        for site, told in engine.members.welcomes().items():
            ids = [int(c) for c in told["clients"]]
            engine.say(f"{site}: clients {', '.join(map(str, ids))}")
        yield Parties(engine, carrier, inputs_of(
            engine, file, images_of(cfg), without.forgotten if without else None))
    finally:
        carrier.close()
        with contextlib.suppress(DataError, OSError):  # of the last session; nothing reads it back
            if (path / PLACE).is_dir():
                files.write_json(path / PLACE / FRAMES, dict(engine.traffic))


def check_file(file: SiteFile) -> None:
    """Refuse a server's file that has images of clients (``ConfigError``)."""
    if file.clients:
        raise ConfigError(
            f"the server's site file contains images of clients {sorted(file.clients)[:8]}, which "
            "must stay at their sites (fedvlm site make without --client writes a file for a "
            "server)"
        )


def inputs_of(
    engine: RemoteEngine, file: SiteFile, folder: Path, forgotten: Mapping[str, Any] | None = None
) -> ServerInputs:
    """Return what the server's side of a run is built of, once the sites were met."""
    told = sorted([sorted(map(int, site["clients"])), site["data"]]
                  for site in engine.members.welcomes().values())
    return ServerInputs(file, folder, engine.members.roster(), digest(told), forgotten)


def join_sites(engine: RemoteEngine, built: Built) -> None:
    """Let a run's clients be at the sites that were met; raises as ``RemoteEngine.join``."""
    engine.chunk = chunk_of(built.cfg, built.model, built.federation.trainer)
    built.federation.meter = None
    engine.join(built.federation)


def await_sites(carrier: Sites, say: Tell, seconds: float) -> None:
    """Wait for the sites of a run; say at once who is not there yet, and in the end who is not.

    Args:
        seconds: the longest wait (``FED.ASK.REACH``), after which nobody is a ``ConfigError``.
    """
    with contextlib.suppress(ConfigError):
        carrier.open(min(_FIRST, seconds))
    if carrier.absent():
        for words in carrier.absent():
            say(f"{words}; waiting for up to {seconds:g} s (FED.ASK.REACH)")
        carrier.open(seconds)
        for words in carrier.absent():
            say(words)


def policy_of(cfg: CfgNode) -> Policy:
    """Return what a config says about sites that do not answer well."""
    asks = cfg.FED.ASK
    return Policy(
        float(asks.SECONDS), float(cfg.FED.UNRELIABLE.QUORUM), int(asks.RETRIES), float(asks.WAIT),
        float(asks.MAX_NORM), int(asks.REFUSALS),
    )


def images_of(cfg: CfgNode) -> Path:
    """Return the folder of the coordinator's images: ``--images``, else that of its site file."""
    root = cfg.DATASET.ROOT
    return user_path(root) if root else user_path(cfg.FED.SITE_FILE).parent


def run_name(path: Path) -> str:
    """Return a run's name at its sites: random, unless it has begun (``DataError``: damaged)."""
    place = path / PLACE / NAME
    with files.explain_errors(place):
        if not place.is_file():
            return secrets.token_hex(32)
        name = place.read_text(encoding="utf-8", errors="replace").strip()
    if not RUN.fullmatch(name):
        raise DataError(
            f"'{place}' is damaged: it does not contain the run's name, which names the folder "
            "of states at the sites"
        )
    return name


def read_met(path: Path) -> Mapping[str, Any]:
    """Return what the sites told when the run began; nothing before (``DataError``: damaged)."""
    mend = "delete it; the sites send it again"
    return dict(files.read_valid_json(path / PLACE / MET, _MET, mend) or {})


def ask_sites(cfg: CfgNode, sites: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what sites of a run tell of themselves now, in the form of ``read_met``.

    Each site logs the visit as a run of a random name, whose entry goes after a day.

    Raises:
        ConfigError: one is not there, or refuses.
    """
    carrier = sites_of(cfg)
    asks = Requests(carrier, secrets.token_hex(32), policy_of(cfg).deadline)
    try:
        await_sites(carrier, _tell, float(cfg.FED.ASK.REACH))
        hello, there = asks.hello(config_plain(cfg)), carrier.sites()
        told = asks.ask({site: hello for site in sites if site in there}, end=False)
        out = dict[str, dict[str, Any]]()
        for site in sites:
            reply = told.get(site, "it is not connected")
            if isinstance(reply, str):
                raise ConfigError(f"{site} does not say which images it still has: {reply}; begin "
                                  "it again (fedvlm site serve)")
            out[site] = {"data": reply.values["data"], "clients": dict(reply.values["clients"])}
            if key := carrier.key(site):
                out[site]["key"] = key
        return out
    finally:
        carrier.close()


def has_left(told: Mapping[str, Any]) -> bool:
    """Tell whether an entry of ``read_met`` is of clients that left (``fedvlm forget``)."""
    return bool(told["data"] == GONE)


def met_without(
    path: Path, sites: Iterable[str], now: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], list[int]]:
    """Return what the sites told, zeros of clients that leave, and the clients of all that left.

    Args:
        sites: of which something leaves.
        now: what they tell without it; a site that is not in it leaves whole.
    """
    met = dict(read_met(path))
    for site in sites:
        told, name, stay = met[site]["clients"], site, now.get(site)
        if stay:
            met[site], name = dict(stay), f"a part of {site} ({stay['data'][:8]})"
        gone = {c: {**dict.fromkeys(PARTS, 0), "classes": [0] * len(counts["classes"])}
                for c, counts in told.items() if not stay or c not in stay["clients"]}
        if gone:
            met[name] = {"data": GONE, "clients": gone}
    return met, sorted(int(c) for told in met.values() if has_left(told)
                       for c in told["clients"])


def left_out(cfg: CfgNode) -> list[str]:
    """Return what a run over sites cannot say, since the clients' images are not here."""
    told = ["as the sites told them, since the clients' images are not here: image counts, rows of "
            "right answers and all means of them, weights, losses, steps and samples (at most 100 "
            "times what was asked for), seconds of fine-tuning"]
    if not cfg.TEST.REFERENCES:
        return told
    secure = bool(cfg.FED.SECURE_SUM)
    told.append("not computed, since they need the clients' images: the baselines (most frequent "
                "class, zero-shot with own classes and with class shares, AFL); logistic "
                f"regression {'' if secure else 'and pooled '}only where all sites allow them "
                "(rule 'baselines' of site.yaml)")
    if secure:
        told.append("pooled is not known: it takes each site's own sums without masks, for which a "
                    "run with FED.SECURE_SUM does not ask; the same run without FED.SECURE_SUM, in "
                    "another --output-dir, tells it where all sites allow it")
    return told
