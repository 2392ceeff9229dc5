"""A site that waits for runs: for each that its owner allows it builds a federation of its own.

The words of a run come from its coordinator, in a hello; the owner's rules are held against them
before anything is read. They are kept beside the states (``.runs/``), so that a site which was
ended and begun again answers on as if nothing had been. Those of runs that never worked here go
after a day, or where there are many.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from fedvlm.config.build import build_config
from fedvlm.config.keys import method_schema
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.progress import Progress
from fedvlm.data.datum import Datum
from fedvlm.data.own.site import SiteFile, read_site
from fedvlm.distributed.facts import odd_keys
from fedvlm.distributed.flower.outpost import Outpost
from fedvlm.distributed.schema import LIMIT, SUMS, by, hexes, name, record, setting, too_long
from fedvlm.distributed.site import Site, failure
from fedvlm.distributed.site_yaml import SiteYaml
from fedvlm.distributed.sockets.serving import serve
from fedvlm.distributed.sockets.stream import listen
from fedvlm.distributed.terms import Refused
from fedvlm.distributed.wire import Frame, WireError, outline, pack, unpack
from fedvlm.federation.discovery import load_trainer
from fedvlm.job.run import threads_of
from fedvlm.job.sites.messages import MessageLog, require_declared
from fedvlm.job.sites.party import config_plain, find_unreadable, open_site
from fedvlm.job.sites.received import PERSONAL, keep_received, keep_rows
from fedvlm.runs import lock

RUNS = ".runs"  # among the states: the words of each run, and which data it was told of
_TRAINER, _BACKBONE, _ROUNDS = "TRAINER.NAME", "MODEL.BACKBONE.NAME", "FED.ROUNDS"
_WORDS = record({"config": by(name, setting), "data": hexes})
_LISTED, _NAMED = 8, 4
IDLE, MOST = 86400.0, 100  # seconds, and number, of greetings that nothing followed
Say = Callable[[str], None]


class Resident:
    """Answers the frames of whatever run its owner allows, one run at a time.

    Args:
        owner: what is here, and what may run.
        own: config keys of this machine: device, cache.
        say: hears what is for the site's own log.

    Raises:
        DataError: the site file has an invalid value.
    """

    def __init__(
        self, owner: SiteYaml, own: Mapping[str, str] | None = None,
        say: Say = lambda words: None, progress: Progress | None = None,
    ) -> None:
        self.owner, self.own, self.say, self.progress = owner, dict(own or {}), say, progress
        self.file: SiteFile = read_site(owner.file)
        self.log = MessageLog(owner.states)
        self._site: Site | None = None
        self._cfg: CfgNode | None = None

    def answer(self, data: bytes) -> bytes:
        """Return the reply to a message; what goes wrong is a reply, too.

        Both are in the site's log before the reply leaves; one that cannot be written does not.
        """
        try:
            return self.log.carry(data, self._reply, lambda: self._site)
        except DataError as error:
            return pack(Frame("failed", {"nonce": _nonce(data)} | failure(error, self.say)))

    def _reply(self, data: bytes) -> bytes:
        nonce, frame = "", None
        try:
            self.owner.terms.allow_size(len(data))
            frame = unpack(data)
            nonce = str(frame.values.get("nonce", ""))
            site, cfg = self._site_of(frame)
        except Exception as error:
            if frame is not None and frame.op == "hello":
                self.say(f"{_greeting(frame)}: turned away")
            return pack(Frame("failed", {"nonce": nonce} | failure(error, self.say)))
        with threads_of(cfg):
            reply = site.answer(data)
        kind = outline(reply)[0]
        if frame.op == "hello":
            self.say(f"{_greeting(frame)}: {'accepted' if kind == 'welcome' else 'turned away'}")
        if kind == "evaluated":
            folder = self.owner.states / frame.values["run"]
            try:
                if frame.values["model"] == PERSONAL:
                    keep_received(folder, frame)
                keep_rows(folder, frame, site.rows)
            except (DataError, WireError) as error:  # the answer is whole without it
                self.say(str(error))
        return reply

    def refuse(self, size: int) -> bytes:
        """Return the reply to a message of so many bytes, which is not read."""
        try:
            self.owner.terms.allow_size(size)
            raise Refused(too_long(size, LIMIT))
        except Refused as error:
            reply = pack(Frame("failed", {"nonce": ""} | failure(error, self.say)))
        try:
            self.log.unread(size, reply)
        except DataError as error:
            return pack(Frame("failed", {"nonce": ""} | failure(error, self.say)))
        return reply

    def _site_of(self, frame: Frame) -> tuple[Site, CfgNode]:
        """Return the site that works for the run of a request; raises as ``site_of``."""
        if frame.op == "hello":
            config = dict(frame.values["config"])
            built = self._built(config)
            place = self._words(str(frame.values["run"]))
            words = {"config": config, "data": self.file.digest}
            if self._read(place) != words:
                with files.explain_errors(place):
                    place.parent.mkdir(parents=True, exist_ok=True)
                    self._sweep(place)
                files.write_json(place, words, private=True)
            return built
        if frame.op not in ("work", "evaluate", "forget", *SUMS):
            raise Refused(f"a site does not support '{frame.op}'")
        return self.site_of(str(frame.values["run"]))

    def site_of(self, run: str) -> tuple[Site, CfgNode]:
        """Return the site that works for a run that was accepted, and the run's config.

        Raises:
            Refused: the owner does not allow it, or nothing is known of it.
            FedvlmError: it cannot be built.
        """
        words = self._read(self._words(run))
        if not words:
            raise Refused("this site does not know that run: the coordinator must register it "
                          "again (run the same command)")
        if words["data"] != self.file.digest:
            raise Refused("the data of this site changed since it accepted that run")
        return self._built(dict(words["config"]))

    def _built(self, config: Mapping[str, Any]) -> tuple[Site, CfgNode]:
        """Return the site of a config: the one of before, or another in its place."""
        if self._site is None or self._cfg is None or self._site.config != config:
            self.owner.terms.admit(config)
            self._site = self._cfg = None  # two would take twice the memory
            began = time.perf_counter()
            cfg = config_from(config, self.own)
            odd = odd_keys(config_plain(cfg), config)
            if odd:  # keys of the owner's (folders, device) are among those that no run has
                raise Refused(f"the config differs in {odd}")
            with threads_of(cfg):
                site = open_site(self.owner, cfg, self.say, self.progress)
            require_declared(site)
            self._site, self._cfg = site, cfg
            self.say(f"{config[_TRAINER]} on {config[_BACKBONE]}: built in "
                     f"{time.perf_counter() - began:.1f} s")
        return self._site, self._cfg

    def _sweep(self, place: Path) -> None:
        """Delete the words of other runs without states here: their coordinator greets anew."""
        others = [p for p in place.parent.glob("*.json")
                  if p != place and not (self.owner.states / p.stem).is_dir()]
        since = {p: p.stat().st_mtime for p in others}
        others.sort(key=since.__getitem__, reverse=True)
        old = [p for i, p in enumerate(others) if i >= MOST or time.time() - since[p] > IDLE]
        for path in old:
            path.unlink()
        if old:
            self.say(f"{len(old)} run(s) that never trained here were removed")

    def _words(self, run: str) -> Path:
        return self.owner.states / RUNS / f"{run}.json"

    def _read(self, path: Path) -> dict[str, Any]:
        """Return what is kept of a run; nothing where there is none, or something damaged."""
        content = files.read_json(path)
        return dict(content) if _WORDS(content) else {}


def _nonce(data: bytes) -> str:
    """Return what an answer to a message has to name; empty: it is no frame."""
    try:
        return str(outline(data)[1].get("nonce", ""))
    except WireError:
        return ""


def config_from(plain: Mapping[str, Any], own: Mapping[str, str]) -> CfgNode:
    """Return the config of a run whose words came over the wire.

    Args:
        plain: the keys of its identity (``config_plain``).
        own: keys of this machine.

    Raises:
        Refused: keys that this fedvlm does not have.
        ConfigError: values that a key cannot have.
    """
    schema = method_schema(load_trainer(str(plain[_TRAINER])))
    stray = sorted(k for k in plain if k not in schema)
    if stray:
        raise Refused(
            f"this site's fedvlm has no {', '.join(stray[:_LISTED])}"
            f"{' and others' if len(stray) > _LISTED else ''}: the versions differ"
        )
    return build_config(
        None, None, own, [], schema, dataset_keys=plain, dataset_origin="the coordinator"
    )[0]


@contextlib.contextmanager
def serving(owner: SiteYaml) -> Iterator[None]:
    """Be the one process that serves a site, and say so beside its states.

    Raises:
        ConfigError: another one does.
        DataError: the folder of states cannot be written.
    """
    place = owner.states / RUNS
    there = lock.holder(place)
    if there:
        raise ConfigError(
            f"process {there['pid']} on {there.get('host')} already serves this site (since "
            f"{there.get('since')}): stop it with fedvlm site stop on that "
            f"machine{lock.way_out(place)}"
        )
    with files.explain_errors(place):
        place.mkdir(parents=True, exist_ok=True)
    mine = lock.acquire(place)
    try:
        yield
    finally:
        mine.release()


def serve_site(
    owner: SiteYaml, path: Path, own: Mapping[str, str], say: Say,
    progress: Progress | None = None, outpost: Outpost | None = None,
) -> None:
    """Answer coordinators one at a time, for ever: those that come to a socket, or over Flower.

    Args:
        path: of the socket, for coordinators of this user; with an outpost its own.
        outpost: the way to a federation on Flower.

    Raises:
        ConfigError: the socket cannot be had, or another process serves this site.
        DataError: the site file, or an image is not there or cannot be read.
    """
    token, where = (outpost.token, f"a socket of its own, as {outpost.invitation.name}") if (
        outpost) else (b"", str(path))
    with listen(path) as door, serving(owner):
        site = Resident(owner, own, say, progress)
        lost = [p for p in site.file.paths() if not (owner.images / p).is_file()]
        if lost:
            raise DataError(
                f"{len(lost)} images of '{owner.file}' are missing in '{owner.images}', the "
                f"first '{lost[0]}': see fedvlm site check"
            )
        images = [Datum(str(owner.images / p), 0, 0, "", p) for p in site.file.paths()]
        if broken := find_unreadable(images, own, progress):
            named = "; ".join(broken[:_NAMED]) + "; ..." * (len(broken) > _NAMED)
            raise DataError(
                f"{len(broken)} of {len(images)} images of '{owner.file}' cannot be read: {named}: "
                f"put good files into '{owner.images}', or write their names, one a line, into a "
                "file LIST and take them out of the lists: fedvlm site forget SITE.YAML --images "
                "LIST"
            )
        if not site.file.clients:
            raise DataError(f"'{owner.file}' has no clients: it belongs to a server")
        say(f"ready at {where}: {site.file.dataset}, clients "
            f"{', '.join(map(str, site.file.clients))}; waiting for coordinators")
        site.log.begin(f"{outpost.invitation.address}, certificate "
                       f"{outpost.invitation.fingerprint}" if outpost else "", owner.terms)
        with outpost or contextlib.nullcontext():
            serve(door, token, site.answer, say, owner.terms.bytes or LIMIT, site.refuse)


def _greeting(frame: Frame) -> str:
    """Return what a hello asks for, as the site's log has it; odd texts are not quoted."""
    config = frame.values["config"]
    method, backbone, rounds = (
        said if name(said := str(config.get(key, "?"))) else "?"
        for key in (_TRAINER, _BACKBONE, _ROUNDS))
    return f"run {str(frame.values['run'])[:12]}: {method} on {backbone}, {rounds} rounds"
