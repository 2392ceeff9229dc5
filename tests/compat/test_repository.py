"""A trainer's file with its repository around it: keys, modules, its own clip, what it keeps."""

from __future__ import annotations

import ast
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fedvlm.cli.methods.check import _exemptions as exemptions
from fedvlm.compat.repository.defaults import MISSING, argument_defaults, assigned_keys
from fedvlm.compat.repository.find import checkout_of, imported_files, local_packages
from fedvlm.compat.repository.loop import kept_by_loop
from fedvlm.compat.repository.own_clip import clip_models
from fedvlm.compat.settings import keys_read, schema_of
from fedvlm.compat.world import active
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.federation.discovery import load_trainer
from fedvlm.job.build import Built
from fedvlm.job.describe import run_path
from tests.compat.small import HERE, built, losses

FORK = HERE / "fork"
PAIR = FORK / "trainers" / "pair.py"
AUTHORS = Path(os.environ.get("FEDVLM_REPOSITORIES", "/work/src")) / "FedOTP" / "trainers"
WORDS = ("--rounds", "2", "--num-users", "3", "--shots", "2", "TEST.REFERENCES", "False",
         "OPTIM.LR", "0.01")


def copy_of(tmp_path: Path, name: str = "PairDouble", **texts: str) -> Path:
    """The fork in a folder of its own; ``texts`` are added to its files' ends."""
    root = tmp_path / "fork"
    root.parent.mkdir(exist_ok=True)
    shutil.copytree(FORK, root, ignore=shutil.ignore_patterns("__pycache__"))
    for file, text in texts.items():
        path = next(root.rglob(f"{file}.py"))
        path.write_text(path.read_text() + text)
    return root / "trainers" / "pair.py"


# ---- keys -----------------------------------------------------------------------------------
def test_keys_are_read_in_any_case_and_messages_are_no_use() -> None:
    text = """
def f(self, cfg, model):
    cfg.TRAINER.FEDPGP.mu + self.cfg.Temp.low + cfg.DATASET.NAME.lower() + cfg.freeze()
    model.cfg.width + model.cfg.WIDTH
    raise ValueError(f"{cfg.nothing}")
"""
    assert keys_read([text], {"DATASET.NAME"}) == [
        "DATASET.NAME", "TRAINER.FEDPGP.mu", "Temp.low", "WIDTH"]


def test_defaults_are_those_of_the_script_which_never_runs() -> None:
    home = checkout_of(PAIR)
    assert home.root == FORK and [m.name for m in home.mains] == ["federated_main.py"]
    found = assigned_keys(home)
    assert found["TRAINER.PAIRDOUBLE.eps"] == 0.1 and found["TRAINER.PAIRDOUBLE.N"] == 2
    assert found["rounds_of_transport"] == 20 and found["OPTIM.ROUND"] == 3
    own, other = schema_of([PAIR.read_text()], "PAIRDOUBLE", found)
    assert own["Mass"].default == 0.8 and own["Mass"].used
    assert not other["TRAINER.OTHER.DEPTH"].used  # assigned, and read by nobody
    assert other["rounds_of_transport"].default == 20
    assert "OPTIM.ROUND" not in other  # ours by another name


def test_what_only_running_would_tell_has_no_default() -> None:
    tree = ast.parse("p.add_argument('--a-b', default=None)\np.add_argument('--c')\n"
                     "p.add_argument('-d', '--dd', action='store_true')\n"
                     "p.add_argument('--e', dest='f', default=[1, 2])\n")
    found = argument_defaults(tree)
    assert (found["a_b"], found["c"]) == (MISSING, MISSING)
    assert found["dd"] is False and found["f"] == [1, 2]


def test_a_key_of_the_file_is_set_like_any_other() -> None:
    run = built(f"{PAIR}:PairDouble", "TRAINER.PAIRDOUBLE.eps", "0.5", "TRAINER.PAIRDOUBLE.N_CTX",
                "2", "TRAINER.PAIRDOUBLE.CTX_INIT", "a photo of a", *WORDS)
    session = run.federation.trainer._of(run.model)
    assert session.inner.model.how == (0.5, 0.8, 20)
    assert list(run.federation.p0["prompt_learner.ctx[:1]"].shape)[:2] == [1, 2]
    with pytest.raises(ConfigError, match="did you mean 'TRAINER.PAIRDOUBLE.Mass'"):
        built(f"{PAIR}:PairDouble", "TRAINER.PAIRDOUBLE.Mas", "1")


# ---- modules --------------------------------------------------------------------------------
def test_modules_of_the_repository_stay_apart() -> None:
    ours = ModuleType("utils")
    before, sys.modules["utils"] = sys.modules.get("utils"), ours
    try:
        run = built(f"{PAIR}:PairDouble", *WORDS)
        imports = run.federation.trainer.imports
        assert imports.modules["utils"] is not ours and sys.modules["utils"] is ours
        assert {"trainers.words", "utils.rows", "clip.model"} <= set(imports.modules)
        assert "trainers.words" not in sys.modules and "clip" not in sys.modules
    finally:
        del sys.modules["utils"]
        sys.modules.update({} if before is None else {"utils": before})
    notes = "; ".join(run.model.notes)
    assert "this runs code of fork: pair.py and" in notes and "own clip/" in notes
    names = {p.relative_to(FORK).as_posix() for p in run.federation.trainer.sources}
    assert {"trainers/words.py", "utils/rows.py", "clip/model.py", "federated_main.py"} <= names


def test_a_file_by_itself_takes_installed_packages(tmp_path: Path) -> None:
    file = tmp_path / "alone.py"
    file.write_text("import yacs\nimport helper\nimport json\n")
    for name in ("yacs", "helper", "json"):
        (tmp_path / f"{name}.py").write_text("")
    home = checkout_of(file)
    assert local_packages(imported_files(file, home), home) == ("helper",)


def test_broken_text_is_named_with_its_line(tmp_path: Path) -> None:
    file = copy_of(tmp_path, rows="\ndef broken(:\n")
    with pytest.raises(ConfigError, match=r"rows.py:\d+: is not valid Python"):
        built(f"{file}:PairDouble")


def test_only_the_file_and_what_it_imports_run(tmp_path: Path) -> None:
    """All other files of a repository leave no trace of having run, and it is said once."""
    file = copy_of(tmp_path, pair="\nimport utils.rows\n")
    root, traces = file.parent.parent, tmp_path / "traces"
    traces.mkdir()
    idle = ["setup.py", "conftest.py", "sitecustomize.py", "train.py", "federated_main.py",
            "trainers/other.py", "utils/other.py", "data/__init__.py"]
    for name in [*idle, "trainers/pair.py", "utils/rows.py"]:
        place = root / name
        place.parent.mkdir(exist_ok=True)
        text = place.read_text() if place.is_file() else ""
        trace = traces / name.replace("/", ".")
        place.write_text(f"{text}\nimport subprocess\nopen({str(trace)!r}, 'w').close()\n")
    notes = built(f"{file}:PairDouble", *WORDS).model.notes
    ran = {p.name for p in traces.iterdir()}
    assert {"trainers.pair.py", "utils.rows.py"} <= ran
    assert not ran & {name.replace("/", ".") for name in idle}
    said = [note for note in notes if note.startswith("this runs code of fork: pair.py and")]
    assert len(said) == 1


@pytest.mark.parametrize(("text", "said"), [
    ("import nothing_of_that_name", r"line \d+, in <module>\); install the missing package"),
    ("from trainers.absent import x", r"line \d+.*there is no .*trainers/absent.py: is the check"),
    ("from .absent import x", r"No module named '.absent' .*there is no .*trainers/absent.py: put"),
    ("from utils.rows import absent", r"cannot import name 'absent' .*line \d+, in <module>\)$"),
    ("cfg = None\ndef f(): return cfg.TRAINER.PAIRDOUBLE.Mas",
     r"pair.py:\d+ reads TRAINER.PAIRDOUBLE.Mas, which .*did you mean 'TRAINER.PAIRDOUBLE.Mass'"),
])
def test_what_a_file_lacks_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = copy_of(tmp_path, pair=f"\n{text}\n")
    with pytest.raises(ConfigError, match=said):
        built(f"{file}:PairDouble", *WORDS)


def test_text_of_another_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    file = copy_of(tmp_path)
    lines = file.read_text().count("\n") + 1
    file.write_bytes(file.read_bytes() + b"# \xe4\n")
    with pytest.raises(ConfigError, match=rf"pair.py:{lines}: is not UTF-8 text"):
        built(f"{file}:PairDouble")


# ---- its own clip ---------------------------------------------------------------------------
def test_its_own_clip_computes_the_backbone() -> None:
    run = built(f"{PAIR}:PairDouble", *WORDS)
    backbone, trainer = run.model.backbone, run.federation.trainer
    session = trainer._of(run.model)
    side = backbone.image_size
    pixels = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    ids = backbone.tokenize(["a star", "two red circles"])
    with torch.no_grad(), active(session.world):
        tokens = session.inner.model.clip.visual(pixels)
        words = session.inner.model.clip.encode_text(ids)
    torch.testing.assert_close(tokens[0], backbone.encode_image(pixels), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        words, backbone.encode_embeddings(backbone.embed_tokens(ids), backbone.eot(ids)),
        rtol=1e-5, atol=1e-5)
    assert trainer.streams(run.model) == ("pixels",)


def test_a_clip_that_fedvlm_has_itself_is_not_loaded(tmp_path: Path) -> None:
    assert [f.name for f in clip_models(list((FORK / "clip").glob("*.py")))] == ["model.py"]
    plain = tmp_path / "model.py"
    plain.write_text("def build_model(other):\n    pass\n")
    assert clip_models([plain]) == []


def test_a_write_into_its_clip_is_refused(tmp_path: Path) -> None:
    file = copy_of(tmp_path, pair='''

class Writer(PairDouble):
    def forward_backward(self, batch):
        with torch.no_grad():
            self.model.clip.ln_final.weight.add_(1)
        return super().forward_backward(batch)
''')
    with pytest.raises(FedvlmError, match=r"clip\.ln_final\.weight' of the frozen towers"):
        losses(built(f"{file}:Writer", "TRAINER.PAIRDOUBLE.N_CTX", "2", *WORDS))


def test_sizes_in_the_file_name_a_backbone(tmp_path: Path) -> None:
    file = copy_of(tmp_path, pair='''

class Wide(PairDouble):
    def build_model(self):
        super().build_model()
        self.extra = nn.Linear(512, 768)
        self.extra(torch.zeros(1, self.model.clip.visual.output_dim))
''')
    with pytest.raises(ConfigError, match=r"\(pair.py, line \d+.*512 and 768.*ViT-B/32 or ViT-B"):
        built(f"{file}:Wide", *WORDS)


def test_logits_of_its_own_test_are_used(tmp_path: Path) -> None:
    file = copy_of(tmp_path, pair='''

class Tests(PairDouble):
    def test(self, split=None):
        self.evaluator.reset()
        for batch in self.test_loader:
            image, label = self.parse_batch_test(batch)
            self.evaluator.process(0 * self.model(image) + 3, label)
        return self.evaluator.evaluate()["accuracy"]


class Strange(PairDouble):
    def model_inference(self, image):
        return self.model.text()[0]
''')
    run = built(f"{file}:Tests", "TRAINER.PAIRDOUBLE.N_CTX", "2", *WORDS)
    trainer = run.federation.trainer
    side = run.model.backbone.image_size
    params = {n: v[None] for n, v in run.federation.p0.items()}
    logits = trainer.predictor(run.model, params)({"pixels": torch.zeros(1, 2, 3, side, side)})
    assert logits.shape[:2] == (1, 2) and bool((logits == 3).all())
    run = built(f"{file}:Strange", "TRAINER.PAIRDOUBLE.N_CTX", "2", *WORDS)
    params = {n: v[None] for n, v in run.federation.p0.items()}
    with pytest.raises(ConfigError, match="model_inference returns .* not logits"):
        run.federation.trainer.predictor(run.model, params)(
            {"pixels": torch.zeros(1, 2, 3, side, side)})


# ---- invariants and names ---------------------------------------------------------------------
def test_a_comment_exempts_an_invariant(tmp_path: Path) -> None:
    file = copy_of(tmp_path, pair="\n# fedvlm: exempt G5: the transport is cut\n")
    assert load_trainer(f"{file}:PairDouble").exempt == {"G5": "the transport is cut"}
    other = copy_of(tmp_path / "b", pair="\n# fedvlm: exempt G1: it sends everything\n")
    with pytest.raises(ConfigError, match="exempts itself from 'G1'"):
        load_trainer(f"{other}:PairDouble")


def test_a_flag_exempts_an_invariant() -> None:
    assert exemptions(["G5: a teacher", "G6 : noise"]) == {"G5": "a teacher", "G6": "noise"}
    with pytest.raises(ConfigError, match="--exempt 'G5' has no reason"):
        exemptions(["G5"])


def test_a_foreign_method_lies_beside_the_native_one(tmp_path: Path) -> None:
    file = copy_of(tmp_path, pair="\n\nclass FedOTP(PairDouble):\n    pass\n")
    run = built(f"{file}:FedOTP")
    assert run_path(run.cfg, "x", "FedOTP").trainer == "FedOTP.py"
    assert run_path(built("FedOTP").cfg, "x", "FedOTP").trainer == "FedOTP"
    assert run_path(built(f"{PAIR}:PairDouble").cfg, "x", "PairDouble").trainer == "PairDouble"


# ---- what it keeps with a client --------------------------------------------------------------
def against_native(run: Built, native: Built) -> None:
    """Losses of every client and round, and the shared prompt, are those of FedOTP."""
    theirs = losses(run)
    for name, rows in (("global", "[:1]"), ("local", "[1:]")):
        start = run.federation.p0[f"prompt_learner.ctx{rows}"][0]
        native.federation.p0[f"text.ctx.{name}"].copy_(start)
    ours = losses(native)
    torch.testing.assert_close(
        torch.tensor(theirs["losses"]), torch.tensor(ours["losses"]), rtol=2e-6, atol=0)
    a = theirs["state"].server["w"]["prompt_learner.ctx[:1]"][0]
    b = ours["state"].server["w"]["text.ctx.global"]
    torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    assert (a - run.federation.p0["prompt_learner.ctx[:1]"][0]).abs().max() > 1e-4


def native() -> Built:
    """FedOTP with four tokens and 20 iterations."""
    return built("FedOTP", *WORDS, "TRAINER.FEDOTP.N_CTX", "4", "TRAINER.FEDOTP.ITERS", "20",
                 pixels=False)


def test_a_fork_that_keeps_rows_is_fedotp() -> None:
    run = built(f"{PAIR}:PairDouble", "TRAINER.PAIRDOUBLE.N_CTX", "4", *WORDS)
    assert run.federation.groups.of == {
        "prompt_learner.ctx[:1]": "shared", "prompt_learner.ctx[1:]": "personal"}
    assert "as in federated_main.py (lines" in "; ".join(run.model.notes)
    against_native(run, native())


@pytest.mark.skipif(not (AUTHORS / "GLP_OT.py").is_file(), reason=f"FedOTP is not at {AUTHORS}")
def test_the_authors_file_is_fedotp() -> None:
    said = {"N_CTX": 4, "EPS": 0.1, "OT": "COT", "TOP_PERCENT": 0.8, "THRESH": 0, "MAX_ITER": 20}
    words = [w for key, value in said.items() for w in (f"TRAINER.GLP_OT.{key}", str(value))]
    run = built(f"{AUTHORS / 'GLP_OT.py'}:GLP_OT", *WORDS, *words)
    against_native(run, native())


def test_rows_are_what_the_user_says() -> None:
    run = built(f"{PAIR}:PairDouble", "FED.PERSONAL", "none", *WORDS)
    assert run.federation.groups.of == {"prompt_learner.ctx": "shared"}
    run = built(f"{PAIR}:PairDouble", "FED.PERSONAL", r"prompt_learner\.ctx[:1]", *WORDS)
    assert run.federation.groups.personal == ("prompt_learner.ctx[:1]",)
    with pytest.raises(ConfigError, match=r"has 2 rows, of which \[2:\] is none"):
        built(f"{PAIR}:PairDouble", "FED.PERSONAL", "prompt_learner.ctx[2:]", *WORDS)


def test_the_loop_is_read_by_branch_and_trainer(tmp_path: Path) -> None:
    main = tmp_path / "federated_main.py"
    text = """
def main(args):
    if args.model == 'fedavg':
        all_[idx] = copy.deepcopy(local['learner.ctx'])
        g = average_weights(all_, n)
    elif args.model == 'own':
        a[idx] = copy.deepcopy(local['learner.sigma'])
        b[idx] = copy.deepcopy(local['learner.U'])
        g = average_weights(a, n)
        h = similarity_weighted_aggregation(c)
parser.add_argument('--model', default='own')
parser.add_argument('--trainer', default='Mine')
"""
    main.write_text(text)
    file = tmp_path / "mine.py"
    file.touch()
    kept = kept_by_loop(checkout_of(file), "Mine")
    assert kept is not None and kept.names == ("learner.U",)
    assert kept.where == "federated_main.py (lines 7 to 8)"
    assert kept.rule == "similarity_weighted_aggregation"
    assert kept_by_loop(checkout_of(file), "Other") is None
    other = tmp_path / "other"
    other.mkdir()
    (other / "federated_main.py").write_text(text.replace("'own')", "'fedavg')"))
    (other / "mine.py").touch()
    assert kept_by_loop(checkout_of(other / "mine.py"), "Mine") is None
