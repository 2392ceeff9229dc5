"""``new-trainer``: the file it writes runs, keeps the invariants and the package's rules."""

from __future__ import annotations

import ast
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

from evidence.results.claims import read_claim
from fedvlm.check.world import CheckWorld
from fedvlm.cli import main as cli
from fedvlm.cli.methods import new_trainer as cli_new
from fedvlm.cli.methods._pfllib import client_facts
from fedvlm.cli.methods._templates import KINDS
from fedvlm.federation.cards import card
from fedvlm.federation.discovery import load_trainer
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from tests.jobs import REPOSITORY
from tests.single_round import single_round
from tests.test_house import CARD, fields

SMALL = ("--shots", "2", "--num-users", "2", "--rounds", "1", "--local-epochs", "1")


@pytest.fixture
def written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[list[str]]:
    """A new trainer in the current folder; the words of the commands that were printed."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new-trainer", "MyMethod", "--into", "."]) == 0
    return next_commands(capsys.readouterr().out)


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def next_commands(out: str) -> list[list[str]]:
    """Return the words of the commands that are printed after "next:"."""
    after = out.split("next:")[1].splitlines()
    return [line.split() for line in after if line.strip()]


def test_what_it_writes_runs_as_it_says(
    written: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    run, check, test = written
    assert [w[:3] for w in (run, check, test)] == [["python", "-m", "fedvlm"]] * 3
    assert (run[3], check[3], test[3:]) == ("run", "check", ["list", "./mymethod.py:MyMethod"])
    assert cli.main([*run[3:], *SMALL, "--output-dir", "out"]) == 0
    assert len(list(Path("out").rglob("results.json"))) == 1
    assert cli.main(check[3:]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("16 hold, 0 exempt, 0 broken")
    assert cli.main(test[3:]) == 0


def test_its_option_is_read_and_means_what_it_says(written: list[list[str]]) -> None:
    made = load_trainer("./mymethod.py:MyMethod")
    line = ["--demo", "--trainer", "./mymethod.py:MyMethod"]
    for mix, wanted in (("0.25", 1.75), ("1", 1.0), ("0", 2.0)):
        words = [*line, "--trainer-config-file", "mymethod.yaml", "--opts"]
        cfg = resolve(parse([*words, "TRAINER.MYMETHOD.MIX", mix])).jobs[0].cfg
        got = made(cfg).personalize(None, {"w": {"a": 1.0, "own": 5.0}}, {"a": 2.0})  # type: ignore
        assert got == {"a": wanted, "own": 5.0}
    cfg = resolve(parse([*line, "--trainer-config-file", "mymethod.yaml"])).jobs[0].cfg
    assert (cfg.PEFT.VISUAL, cfg.TRAINER.MYMETHOD.MIX) == ("feature", 0.5)


def test_in_the_repository_it_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trainers").mkdir()
    monkeypatch.setattr(cli_new, "checkout", lambda: tmp_path)
    monkeypatch.chdir(tmp_path / "trainers")
    assert cli.main(["new-trainer", "Fresh_Idea"]) == 0
    out = capsys.readouterr().out
    assert f"wrote {tmp_path / 'trainers' / 'fresh_idea.py'}" in out
    run, check, test = next_commands(out)
    assert run[-2:] == ["--trainer", "Fresh_Idea"] and check[-1] == "Fresh_Idea"
    assert test[:3] == ["python", "-m", "pytest"] and test[-2:] == ["-k", "fresh_idea"]
    assert all((REPOSITORY / word).exists() for word in test if word.startswith("tests/"))
    code = tmp_path / "trainers" / "fresh_idea.py"
    yaml = tmp_path / "configs" / "trainers" / "fresh_idea.yaml"
    assert load_trainer(f"{code}:Fresh_Idea").name == "Fresh_Idea"
    words = ["--demo", "--trainer", str(code), "--config-file", str(yaml)]
    assert resolve(parse(words)).jobs[0].cfg.TRAINER.FRESH_IDEA.MIX == 0.5
    assert "NAME: Fresh_Idea" in yaml.read_text()


@pytest.mark.parametrize("installed", [True, False])
def test_outside_the_repository_it_writes_where_one_is(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "checkout").mkdir()
    (tmp_path / "mine").mkdir()
    place = None if installed else tmp_path / "checkout"
    monkeypatch.setattr(cli_new, "checkout", lambda: place)
    monkeypatch.chdir(tmp_path / "mine")
    assert cli.main(["new-trainer", "Fresh_Idea"]) == 0
    out = capsys.readouterr().out
    assert f"wrote {tmp_path / 'mine' / 'fresh_idea.py'}\n" in out
    assert "--trainer ./fresh_idea.py:Fresh_Idea" in out
    assert not any((tmp_path / "checkout").iterdir())


def test_whatever_it_writes_keeps_the_house_rules(tmp_path: Path) -> None:
    for registered, kind in product((True, False), ("", *KINDS)):
        name = f"{kind.replace('-', '_')}M".ljust(cli_new.LONGEST, "M")
        path = tmp_path / f"{name.lower()}_{registered}.py"
        path.write_text(cli_new.texts(name, registered=registered, kind=kind)[0])
        there = fields(card(path))
        assert [field for field in CARD if not there.get(field)] == []
        assert read_claim(there["Claim"]) is None
        (cls,) = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef)]
        assert len(cls.decorator_list) == registered
    config = f"--config={REPOSITORY / 'pyproject.toml'}"
    ruff = [sys.executable, "-m", "ruff", "check", config, str(tmp_path)]
    done = subprocess.run(ruff, capture_output=True, text=True, check=False)
    if "No module named" in done.stderr:
        pytest.skip("ruff is not installed")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_trains(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it writes, with its own YAML: two clients, one round, and the shared part moves."""
    monkeypatch.chdir(tmp_path)
    typed = kind.upper().replace("-", "_")
    assert cli.main(["new-trainer", "Mine", "--kind", typed, "--into", "."]) == 0
    run, check, _ = next_commands(capsys.readouterr().out)
    assert run[-1] == check[-1] == "./mine.yaml"
    trainer = load_trainer("./mine.py:Mine")
    (event,) = single_round(CheckWorld(yaml=Path("mine.yaml")), trainer).events
    assert event.updates is not None
    moved = {n for n, v in event.updates.params.items()
             if not torch.equal(v, event.updates.received[n])}
    wanted = {"prompt": "text.ctx", "adapter": "image.adapter.up", "visual-prompt":
              "image.prompt.1", "lora-rule": "image.lora.0.q.B", "module": "2.bias"}
    assert wanted[kind] in moved


def test_weights_of_the_lora_rule_are_powers_of_sizes(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    code, yaml = cli_new.texts("Mine", registered=False, kind="lora-rule")
    path.write_text(code)
    path.with_suffix(".yaml").write_text(yaml)
    world = CheckWorld(yaml=path.with_suffix(".yaml"))
    (event,) = single_round(world, load_trainer(f"{path}:Mine")).events
    sent, name = event.updates, "image.lora.0.q.B"
    assert sent is not None and sent.weight.tolist() == [7, 5]
    share = torch.tensor([7**0.5, 5**0.5]).double() / (7**0.5 + 5**0.5)
    by_hand = (share.view(2, 1, 1) * sent.params[name]).sum(0)
    assert torch.allclose(event.server["w"][name], by_hand)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_runs_as_it_says(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new-trainer", "Mine", "--into", ".", "--kind", kind]) == 0
    run, check, _ = next_commands(capsys.readouterr().out)
    assert cli.main(check[3:]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("16 hold, 0 exempt, 0 broken")
    assert cli.main([*run[3:], *SMALL, "--output-dir", "out"]) == 0
    assert len(list(Path("out").rglob("results.json"))) == 1


@pytest.mark.parametrize("there", ["mymethod.py", "mymethod.yaml"])
def test_nothing_is_overwritten(
    tmp_path: Path, there: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / there).write_text("mine")
    words = ["new-trainer", "MyMethod", "--into", str(tmp_path)]
    assert f"{there}' already exists" in said(words, capsys)
    assert [p.name for p in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine"


@pytest.mark.parametrize(("words", "says"), [
    (["My-Method"], "such as MyMethod"), (["3x"], "such as X"), ([""], "such as MyMethod"),
    (["class"], "MyClass"), (["Option"], "MyOption"), (["trainer_registry"], "Python keyword or"),
    (["Name"], "TRAINER.NAME"), (["fed-avg"], "such as Fedavg"), (["Fed_Avg"], "fedavg"),
    (["M" * 31], "up to 29"), ([], "a class name"), (["A", "B"], "a class name"),
    (["CfgNode"], "MyCfgnode"),
])
def test_mistakes_get_a_sentence(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli_new, "checkout", lambda: tmp_path)
    assert says in said(["new-trainer", *words], capsys)
    assert list(tmp_path.iterdir()) == []


def test_help_and_the_page_name_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["new-trainer", "--help"]) == 0
    page = capsys.readouterr().out
    assert "--into DIR" in page and all(f"{kind}: " in page for kind in KINDS)
    assert "`python -m fedvlm new-trainer MyMethod`" in (REPOSITORY / "CONTRIBUTING.md").read_text()
    (tmp_path / "file").write_text("")
    assert "is a file" in said(["new-trainer", "A", "--into", str(tmp_path / "file")], capsys)


CLIENT = '''
class clientOwn(Client):
    def __init__(self, args, id, train_samples, test_samples, **kwargs):
        super().__init__(args, id, train_samples, test_samples, **kwargs)
        self.lamda, self.twice = args.lamda, args.plocal_epochs
        self.rate = args.local_learning_rate
        self.before = copy.deepcopy(self.model)

    def train(self):
        for epoch in range(self.twice):
            for param in self.model.head.parameters():
                param.requires_grad = True
        for epoch in range(self.local_epochs):
            self.protos = self.collect()
'''


def test_a_client_of_pfllib_becomes_a_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("clientown.py").write_text(CLIENT)
    facts = client_facts(Path("clientown.py"))
    assert (facts.options, facts.copies) == (("lamda", "plocal_epochs"), ("before",))
    assert (facts.phases, facts.split, facts.protos) == (2, True, True)
    assert cli.main(["new-trainer", "Mine", "--from", "./clientown.py", "--into", "."]) == 0
    run = next_commands(capsys.readouterr().out)[0]
    assert cli.main([*run[3:], *SMALL, "--output-dir", "out"]) == 0
    mine = load_trainer("./mine.py:Mine")
    assert mine.phases and list(mine.options) == ["LAMDA", "PLOCAL_EPOCHS"]
    assert mine.options["PLOCAL_EPOCHS"].kind is int


@pytest.mark.parametrize(("words", "sentence"), [
    (("--from", "nothing.py"), "--from nothing.py: cannot be read"),
    (("--from", "other.py"), "has no class that derives from PFLlib's Client"),
    (("--from", "pfllib", "--kind", "prompt"), "give one of them"),
])
def test_what_is_no_client_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...], sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.py").write_text("class Server:\n    pass\n")
    assert sentence in said(["new-trainer", "Mine", *words, "--into", "."], capsys)
    assert not Path("mine.py").exists()


def test_the_skeleton_of_pfllib_keeps_the_invariants() -> None:
    code, _ = cli_new.texts("Mine", registered=False, source="pfllib")
    assert "set_parameters" in code and "phases" not in code and "options" not in code
