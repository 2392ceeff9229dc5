"""Sites that have their own images only, against the run that sees all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedvlm.check.compare import copy_fed, same_fed
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.own.site import SiteFile, cut_site, read_site
from tests import jobs

RUN = "ab" * 16


def config(tmp_path: Path, *more: str, sets: tuple[str, ...] = ()) -> Any:
    from fedvlm.job.flags import parse
    from fedvlm.job.resolve import resolve

    words = jobs.argv(tmp_path, "--trainer", "FedTV", *more, "--opts", "FED.SITES", "0,1", *sets)
    return resolve(parse(words)).jobs[0].cfg


def coordinate(
    cfg: Any, file: SiteFile, folder: Path, carrier: Any, policy: Any = None
) -> Any:
    """The server's side of a run whose sites answer in this process: what was built."""
    from fedvlm.distributed.server.policy import Policy
    from fedvlm.distributed.server.remote import RemoteEngine
    from fedvlm.job.build import build_run
    from fedvlm.job.sites.parties import check_file, inputs_of, join_sites
    from fedvlm.job.sites.party import config_plain

    check_file(file)
    engine = RemoteEngine(
        carrier, config_plain(cfg), policy=policy or Policy(), run_id=RUN)
    engine.meet(int(cfg.FED.CLIENTS), 0)
    built = build_run(cfg, inputs=inputs_of(engine, file, folder))
    join_sites(engine, built)
    return built


def test_sites_with_their_own_images_give_the_bits_of_the_run_that_sees_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedvlm.distributed.server.policy import Policy
    from fedvlm.distributed.site_yaml import SiteYaml
    from fedvlm.distributed.store import SiteStore
    from fedvlm.distributed.terms import Terms
    from fedvlm.federation.rounds import RoundFinished
    from fedvlm.federation.server import Measure
    from fedvlm.job.build import build_run
    from fedvlm.job.record import make_evaluator
    from fedvlm.job.sites.party import open_site
    from tests.distributed.in_process import InProcess

    def watched(fed: Any) -> list[Any]:
        rows: list[Any] = []
        fed.subscribers.append(lambda e: rows.append(e.rows([0, 1], Measure()))
                               if isinstance(e, RoundFinished) else None)
        return rows

    def scored(built: Any) -> list[Any]:
        evaluator, out = make_evaluator(built), list[Any]()
        built.federation.subscribers.append(lambda e: out.append(evaluator(e)))
        return out

    cfg = config(tmp_path)
    whole = build_run(cfg)
    rows, scores = watched(whole.federation), scored(whole)
    end = copy_fed(whole.federation.read(whole.federation.run()))
    sites = {}
    for name, file in (*((str(c), cut_site(whole.data, [c])) for c in (0, 1)),
                       ("server", cut_site(whole.data, (), public=True))):
        file.write(tmp_path / f"{name}.json")
        folder = tmp_path / f"images{name}"
        for path in file.paths():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            source = next(d.impath for d in whole.data.samples if d.key == path)
            shutil.copy(source, folder / path)
        monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / f"cache{name}"))
        alone = config(tmp_path, "--root", str(tmp_path / "nowhere"))
        if name == "server":
            carrier = InProcess({n: s.answer for n, s in sites.items()})
            coordinator = coordinate(
                alone, read_site(tmp_path / "server.json"), folder, carrier, Policy(wait=0))
            continue
        owner = SiteYaml(
            tmp_path / f"{name}.json", folder, tmp_path / f"states{name}",
            Terms(("tiny",), ("FedTV",), 2),
        )
        sites[name] = open_site(owner, alone)
    fed = coordinator.federation
    told, global_ = watched(fed), scored(coordinator)
    state = fed.run()
    assert not any(len(c.train) for c in coordinator.data.clients)
    assert [s and s["global"] for s in global_] == [s and s["global"] for s in scores]
    over = fed.read(state)
    for name, site in sites.items():
        clients = site.federation.clients
        clients.store = SiteStore(tmp_path / f"states{name}", RUN, torch.device("cpu"))
        over.clients.update(clients.read([int(name)], state.versions))
    same_fed(over, end, "sites with their own images")
    assert told == rows


FILE = SiteFile("shapes", ["a", "b"], ["a {}."], {
    1: {"train": [("x/1.png", 0)], "val": [], "test": [("x/2.png", 1)]}
})  # fmt: skip


def test_a_site_file_comes_back_and_is_sealed(tmp_path: Path) -> None:
    FILE.write(tmp_path / "site.json")
    assert read_site(tmp_path / "site.json") == FILE
    text = (tmp_path / "site.json").read_text()
    (tmp_path / "site.json").write_text(text.replace("x/2.png", "x/3.png"))
    with pytest.raises(DataError, match="does not match its sha256"):
        read_site(tmp_path / "site.json")


@pytest.mark.parametrize(("lists", "said"), [
    ([("../x.png", 0)], "must be a relative path"), ([("/x.png", 0)], "must be a relative path"),
    ([("x.png", 2)], "label of 'x.png' is none of 0 to 1"), ([("x.png",)], "an image is"),
])  # fmt: skip
def test_a_malformed_site_file_is_refused(tmp_path: Path, lists: Any, said: str) -> None:
    SiteFile("s", ["a", "b"], ["{}"], {0: {"train": lists, "val": [], "test": []}}).write(
        tmp_path / "site.json"
    )
    with pytest.raises(DataError, match=said):
        read_site(tmp_path / "site.json")


def test_images_and_clients_that_are_not_there_are_named(tmp_path: Path) -> None:
    cfg = config(tmp_path)
    with pytest.raises(DataError, match="2 of 2 images .* the first 'x/1.png'"):
        FILE.load(cfg, tmp_path)
    with pytest.raises(ConfigError, match="the site file has client 7, and FED.CLIENTS 2 are 0"):
        SiteFile("s", ["a"], ["{}"], {7: FILE.clients[1]}).load(cfg, tmp_path)


def test_a_public_test_set_and_the_server_s_images_come_back(tmp_path: Path) -> None:
    file = SiteFile("s", ["a", "b"], ["{}"], {}, [("p/1.png", 0)], [("q/1.png", 1)])
    file.write(tmp_path / "server.json")
    assert read_site(tmp_path / "server.json") == file and file.paths() == ["p/1.png", "q/1.png"]
    assert file.digest != FILE.digest and "public" not in FILE._body()


def test_a_coordinator_refuses_what_is_its_clients(tmp_path: Path) -> None:
    from tests.distributed.in_process import InProcess

    with pytest.raises(ConfigError, match=r"images of clients \[1\], which must stay at"):
        coordinate(config(tmp_path), FILE, tmp_path, InProcess({}))


@pytest.mark.parametrize(("words", "said"), [
    (("AKT", "yes"), "the server has no images of its own"),
    (("AKT_PROXY", "clients"), "on validation images of its clients, which are at their sites"),
])  # fmt: skip
def test_heart_without_images_at_the_server_is_refused_there_at_once(
    tmp_path: Path, words: tuple[str, str], said: str
) -> None:
    from fedvlm.federation.server import Roster
    from fedvlm.job.build import prepare_run
    from fedvlm.job.inputs import ServerInputs, SiteInputs

    names = ["a", "b"]
    two = np.array([2, 2])
    counts = Roster(two, two, two, np.ones((2, 2), np.int64), np.array([0, 1]))
    sets = (f"TRAINER.HEART-PFL.{words[0]}", words[1])
    cfg = config(tmp_path, "--trainer", "HEART-PFL", sets=sets)
    with pytest.raises(ConfigError, match=said):
        prepare_run(cfg, inputs=ServerInputs(SiteFile("s", names, ["{}"]), tmp_path, counts))
    if words[1] == "yes":  # a site needs none
        prepare_run(cfg, inputs=SiteInputs(SiteFile("s", names, ["{}"]), tmp_path))
