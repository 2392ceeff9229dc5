"""``DATASET.TEMPLATES`` with templates of single clients: file, model, method, run, refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from fedvlm.api.adapt import adapt
from fedvlm.api.audit import plan_audit
from fedvlm.api.replay import replay
from fedvlm.api.run import load
from fedvlm.check.world import BASE, CheckWorld, Setup
from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.spelling import described
from fedvlm.data.datum import refuse_client_texts
from fedvlm.data.own.sentences import read_client_templates, read_templates
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.rounds import Event, Federation, RoundFinished
from fedvlm.models.vlmodel import VLModel, template_groups
from tests.models.toys import toy

NAMES = ("red fox", "blue jay")
SHARED = {"red fox": ["a fox with a red coat"], "blue jay": ["a blue bird", "it sings"]}
DUTCH = ["een foto van een {}.", "een tekening van een {}."]
OTHER = ("eine Skizze: {}!",)


def table(folder: Path, body: object) -> str:
    path = folder / "texts.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body), encoding="utf-8")
    return str(path)


def test_a_file_with_clients(tmp_path: Path) -> None:
    own = {"Utrecht": DUTCH, "Gent": {"red_fox": ["een vos"], "blue jay": "een gaai"}}
    file = table(tmp_path, {**SHARED, "clients": own})
    sites = ("Berlin", "Gent", "Utrecht")
    assert len(read_templates(file)) == 2
    found = read_client_templates(file, sites, 3, NAMES)
    assert list(found) == [2, 1] and found[2] == DUTCH
    assert [json.loads(t) for t in found[1]] == [{"red_fox": "een vos", "blue jay": "een gaai"}]
    file = table(tmp_path, {"clients": {"1": "een {}"}})  # everybody else has the set's prompt
    assert read_templates(file) == []
    assert read_client_templates(file, (), 2, NAMES) == {1: ["een {}"]}
    assert read_client_templates(file, sites, 3, NAMES) == {1: ["een {}"]}
    assert read_client_templates(file, ("1", "2"), 2, NAMES) == {0: ["een {}"]}  # a name is first
    file = table(tmp_path, {"clients": ["people who buy"]})  # a class of this name, as ever
    assert len(read_templates(file)) == 1 and not read_client_templates(file, (), 2, ("clients",))


@pytest.mark.parametrize(("own", "said"), [
    ({"Utrect": DUTCH}, "no client 'Utrect'; did you mean 'Utrecht'"),
    ({"2": DUTCH}, "no client '2' .known: a number from 0 to 1 or a name"),
    ({"Utrecht": DUTCH, "1": DUTCH}, "'Utrecht' and '1' are the same client"),
    ({"Gent": {"red fox": ["een vos"]}}, "client 'Gent', has no sentences for the class 'blue j"),
    ({"Gent": ["zonder"]}, "client 'Gent' must have a list of templates, each with {} once"),
    ({"Gent": []}, "client 'Gent' must have a list"),
    ({"Gent": {}}, "client 'Gent' has no classes"),
    ({"Gent": {"red fox": 1}}, "client 'Gent': 'red fox' must have a list of sentences"),
])
def test_clients_that_cannot_be_used(tmp_path: Path, own: object, said: str) -> None:
    file = table(tmp_path, {**SHARED, "clients": own})
    with pytest.raises(DataError, match=said):
        read_client_templates(file, ("Gent", "Utrecht"), 2, NAMES)


def test_a_client_written_twice(tmp_path: Path) -> None:
    file = table(tmp_path, '{"clients": {"0": ["a {}"], "0": ["b {}"]}}')
    with pytest.raises(DataError, match="has '0' twice"):
        read_templates(file)


def test_names_that_are_numbers_stand_for_nothing_else(tmp_path: Path) -> None:
    file = table(tmp_path, {"clients": {"0": DUTCH}})
    with pytest.raises(DataError, match="no client '0'.*known: a name that the data give"):
        read_client_templates(file, ("1", "2"), 2, NAMES)


def test_a_model_reads_the_templates_of_its_clients() -> None:
    own = {1: DUTCH, 3: DUTCH, 4: OTHER, 5: ("a photo of a {}.",)}
    model = VLModel(toy(dtype=torch.float64), NAMES, client_templates=own)
    assert template_groups(model, range(6)) == [0, 1, 0, 1, 2, 0]
    for asked, templates in (([1], DUTCH), ([3, 1], DUTCH), ([4], OTHER)):
        plain = VLModel(model.backbone, NAMES, templates=templates)
        assert torch.equal(model.of_clients(asked).anchor("raw", 0), plain.anchor("raw", 0))
    assert all(model.of_clients(some) is model for some in ([], [0], [5], [0, 2], [1, 4]))
    assert model.of_clients([1]).with_classes(["cat"]).templates == tuple(DUTCH)
    assert not model.fresh().client_templates
    long = VLModel(model.backbone, NAMES, client_templates={1: ("very " * 60 + "{}",)})
    with pytest.raises(ConfigError):
        long.check_texts()


# ---- methods -------------------------------------------------------------------------------------
# Sentences of the wrong classes: whoever reads them learns something else.
WRONG = described({name: [f"a photo of a {BASE[k - 1]}."] for k, name in enumerate(BASE)})


@cache
def world() -> CheckWorld:
    return CheckWorld()


def first_round(
    name: str, opts: dict[str, Any], own: Mapping[int, Sequence[str]], shared: Sequence[str] = (),
) -> tuple[list[dict[str, Tensor]], list[Tensor]]:
    """What the clients of the world send in a round, and what their models then say of images."""
    events: list[RoundFinished] = []
    fed: Federation = world().federation(
        load_trainer(name), Setup(rounds=1, chunk=8, opts=opts))
    fed.model = VLModel(world().backbone, fed.model.classnames, packed=False,
                        client_templates=own, templates=shared or fed.model.templates)

    def keep(event: Event) -> None:
        if isinstance(event, RoundFinished) and event.round:
            events.append(event)

    fed.subscribers.append(keep)
    state = fed.run()
    updates, said = events[-1].updates, dict[int, Tensor]()
    sent: list[dict[str, Tensor]] = [{}, {}]
    if updates is not None:
        every = updates.params | updates.extras
        sent = [{n: v[k] for n, v in every.items()} for k in range(2)]
    for ids, params in fed.personal(state, [0, 1]):
        x = world().streams(fed, torch.arange(4).expand(len(ids), 4))
        with torch.no_grad():
            logits = fed.trainer.predictor(fed.model.of_clients(ids), params)(x)
        said |= dict(zip(ids, logits, strict=True))
    return sent, [said[0], said[1]]


def same(a: Tensor | dict[str, Tensor], b: Tensor | dict[str, Tensor]) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        a, b = {"": torch.as_tensor(a)}, {"": torch.as_tensor(b)}
    return all(torch.allclose(v, b[n], rtol=0, atol=1e-9) for n, v in a.items())


@pytest.mark.parametrize(("name", "opts", "reads"), [
    ("ZeroShot", {}, True), ("CLIP-Adapter", {}, True), ("KgCoOp", {}, True),
    ("PromptSRC", {"DEPTH": 1}, True), ("TRIP", {}, True),
    ("FedMVP", {}, True), ("FedPGP", {"ANCHOR": "template"}, True),
    ("FedPGP", {"ANCHOR": "literal"}, False), ("FedTV", {"ANCHOR": "template"}, True),
    ("FedTV", {"ANCHOR": "literal"}, False), ("FedCLIP", {"VARIANT": "fixed"}, True),
    ("FedCLIP", {"VARIANT": "published"}, False), ("FedMedCLIP", {"VARIANT": "fixed"}, True),
    ("FedMedCLIP", {"VARIANT": "published"}, False), ("pFedMMA", {"VARIANT": "fixed"}, True),
    ("pFedMMA", {"VARIANT": "published"}, False), ("PromptFL", {}, False), ("FedTPG", {}, False),
])
def test_a_client_works_as_if_all_had_its_templates(
    name: str, opts: dict[str, Any], reads: bool
) -> None:
    """``reads_templates`` is what the numbers say: a client's own change its work, and only its."""
    trainer = world().federation(load_trainer(name), Setup(opts=opts)).trainer
    assert trainer.reads_templates is reads
    sent, said = first_round(name, opts, {0: WRONG})
    plain_sent, plain_said = first_round(name, opts, {})
    assert same(sent[1], plain_sent[1])
    assert (same(sent[0], plain_sent[0]) and same(said[0], plain_said[0])) is not reads
    if reads:
        all_sent, all_said = first_round(name, opts, {}, WRONG)
        assert same(sent[0], all_sent[0]) and (sent[0] or same(said[0], all_said[0]))


# ---- runs ----------------------------------------------------------------------------------------
def run(folder: Path, *words: str, method: Sequence[str] = ("LocalOnly", "--peft", "feature")
        ) -> int:
    return main(["run", "--demo", "--rounds", "1", "--clients", "2", "--shots", "1",
                 "--output-dir", str(folder), "--trainer", *method, *words])


def photos(folder: Path, classnames: Sequence[str]) -> Path:
    for n, name in enumerate(classnames[:2]):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(2):
            Image.new("RGB", (40, 40), (90 * n, 60 * i, 50)).save(folder / name / f"{i}.png")
    return folder


def test_a_run_of_clients_with_texts_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each client's numbers are those of a run in which everybody has its templates."""
    file, plain = tmp_path / "texts.json", tmp_path / "prompts.txt"
    asked = ("--opts", "DATASET.TEMPLATES", str(file))
    file.write_text(json.dumps({"clients": {"0": DUTCH}}))
    plain.write_text("\n".join(DUTCH))
    assert run(tmp_path / "own", *asked) == 0
    assert "1 of 2 clients have templates of their own" in capsys.readouterr().out
    assert run(tmp_path / "all", *asked[:2], str(plain)) == run(tmp_path / "none") == 0
    own, everybody, nobody = (
        next((tmp_path / n).rglob("results.json")).parent for n in ("own", "all", "none"))
    said = [json.loads((folder / "results.json").read_text())["results"]
            for folder in (own, everybody, nobody)]
    for client, other in ((1, said[2]), (0, said[1])):
        for name in ("zero_shot", "zero_shot_local", "zero_shot_prior", "logreg"):
            rows = [one["references"][name]["clients"][client] for one in (said[0], other)]
            assert rows[0] == rows[1], name
    assert "the client's own" in said[0]["references"]["zero_shot"]["how"]
    assert "own" not in said[1]["references"]["zero_shot"]["how"]
    assert said[0]["zero_shot"]["personal"] != said[2]["zero_shot"]["personal"]
    for client, other in ((1, nobody), (0, everybody)):
        ours, theirs = load(own).client(client), load(other).client(client)
        assert ours.model.templates == theirs.model.templates
        for name, value in ours.params.items():
            assert torch.allclose(value, theirs.params[name], atol=1e-6), name
    assert load(own).global_model.model.templates == load(nobody).global_model.model.templates
    names = load(own).classnames
    news = [adapt(folder, photos(tmp_path / "new", names), epochs=2)[0] for folder in (own, nobody)]
    assert all(torch.equal(v, news[1].params[n]) for n, v in news[0].params.items())  # no client 0
    with pytest.raises(ConfigError, match="fedvlm audit reads the same templates"):
        plan_audit(own)
    file.write_text(json.dumps({"clients": {"0": DUTCH[:1]}}))  # another file is another run
    assert run(tmp_path / "own", *asked) == 2
    with pytest.raises(DataError, match="other texts than when the run was made"):
        replay(own)
    with pytest.raises(DataError, match="other texts than when the run was made"):
        load(own).client(0)


def test_what_cannot_have_them_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = table(tmp_path, {"clients": {"1": DUTCH}})
    asked = ("--opts", "DATASET.TEMPLATES", file)
    usual = ("LocalOnly", "--peft", "feature")
    other = ("--opts", "DATASET.TEMPLATES", table(tmp_path / "..", {"clients": {"2": DUTCH}}))
    for method, words, code, said in (
        (("LocalOnly", "--peft", "head"), asked, 2, "LocalOnly does not read templates in a cli"),
        (("TOFA",), asked, 2, "TOFA does not read templates"),
        (usual, ("--engine", "workers", *asked), 2, "FED.ENGINE workers: another process would"),
        (usual, other, 3, "no client '2'"),
    ):
        assert run(tmp_path / "out", *words, method=method) == code
        assert said in capsys.readouterr().err
    refuse_client_texts("x", {})
    with pytest.raises(ConfigError, match="fedvlm advise reads the same templates for all"):
        refuse_client_texts("fedvlm advise", {1: DUTCH})


@pytest.mark.parametrize("text", [
    '{"clients": ["a {}"]}', '{"clients": "a {}"}', '{"clients": {}}', '{"Clients": {"1": "a {}"}}',
])
def test_clients_that_are_no_object_of_clients(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(DataError, match=r'write templates of single clients as \{"clients"'):
        read_templates(str(tmp_path / "t.json"))


def test_lists_in_lists_end_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"clients": ' + "[" * 200_000)
    with pytest.raises(DataError, match="too deeply|is no JSON"):
        read_templates(str(tmp_path / "t.json"))


def test_prograd_is_guided_by_a_clients_own() -> None:
    fed = world().federation(load_trainer("ProGrad"), Setup())
    fed.model.client_templates = {0: tuple(WRONG)}
    guides = []
    for model in (fed.model, fed.model.of_clients([0])):
        batch = next(iter(fed.context([1]).batches("guide")))
        params = {n: v[None] for n, v in fed.p0.items()}
        guides.append(fed.trainer.guide(model, params, batch))  # type: ignore[attr-defined]
    assert fed.trainer.reads_templates and not torch.equal(*guides)
