"""Sites that have their own images only, against the run that sees all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.check.compare import copy_fed, same_fed
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.own.site import SiteFile, cut, read_site
from tests import jobs

RUN = "ab" * 16


def config(tmp_path: Path, *more: str) -> Any:
    from fedvlm.job.flags import parse
    from fedvlm.job.resolve import resolve

    words = jobs.argv(tmp_path, "--trainer", "FedTV", *more, "--opts", "FED.SITES", "0,1")
    return resolve(parse(words)).jobs[0].cfg


def test_sites_with_their_own_images_give_the_bits_of_the_run_that_sees_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedvlm.distributed.carriers import InProcess
    from fedvlm.distributed.policy import Policy
    from fedvlm.distributed.remote import RemoteEngine
    from fedvlm.distributed.site import Site
    from fedvlm.distributed.store import SiteStore
    from fedvlm.federation.rounds import RoundFinished
    from fedvlm.federation.server import Measure
    from fedvlm.job.build import build
    from fedvlm.job.identity import identity_config
    from fedvlm.job.inputs import SiteInputs

    def watched(fed: Any) -> list[Any]:
        rows: list[Any] = []
        fed.subscribers.append(lambda e: rows.append(e.rows([0, 1], Measure()))
                               if isinstance(e, RoundFinished) else None)
        return rows

    cfg = config(tmp_path)
    plain = json.loads(json.dumps(identity_config(cfg)))
    whole, server = build(cfg), build(cfg)
    rows = watched(whole.federation)
    end = copy_fed(whole.federation.read(whole.federation.run()))
    sites = {}
    for client in (0, 1):
        file, folder = tmp_path / f"{client}.json", tmp_path / f"images{client}"
        cut(whole.data, [client]).write(file)
        for lists in read_site(file).clients.values():
            for path, _ in (row for part in lists.values() for row in part):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                source = next(d.impath for d in whole.data.samples if d.key == path)
                shutil.copy(source, folder / path)
        monkeypatch.setenv("FEDVLM_CACHE", str(tmp_path / f"cache{client}"))
        alone = config(tmp_path, "--root", str(tmp_path / "nowhere"))
        built = build(alone, inputs=SiteInputs(read_site(file), folder))
        assert {Path(d.impath).is_relative_to(folder) for d in built.data.samples} == {True}
        sites[str(client)] = Site(built.federation, [client], tmp_path / f"states{client}", plain)
    engine = RemoteEngine(
        InProcess({n: s.answer for n, s in sites.items()}), plain, whole.federation.engine.chunk,
        Policy(wait=0), RUN,
    )
    engine.meet(2, 0)
    fed = server.federation
    engine.join(fed)
    told = watched(fed)
    state = fed.run()
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
