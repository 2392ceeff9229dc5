"""From flags to configs: files, precedence, seeds, the trainer's own options."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.config.federation import PARTITIONS
from fedvlm.config.sections import SKEWED
from fedvlm.core.errors import ConfigError
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve, run_config
from tests.job.house import jobs, mistakes


def test_iid_false_is_false_and_useall_false_is_false(house: Path):
    (job,) = jobs("--dataset oxford_pets --iid False --useall False").jobs
    assert job.cfg.FED.PARTITION == "disjoint" and job.cfg.DATASET.NUM_SHOTS == 8
    (job,) = jobs("--dataset oxford_pets --iid True --useall True").jobs
    assert job.cfg.FED.PARTITION == "iid" and job.cfg.DATASET.NUM_SHOTS == -1
    assert job.origins["FED.PARTITION"] == "flag --iid, as DATASET.IID"


def test_the_fields_own_line_works_as_written(house: Path):
    line = "--root DATA/ --dataset-config-file configs/datasets/oxfordpets.yaml --num-users 10"
    (job,) = jobs(line).jobs
    cfg = job.cfg
    assert (cfg.TRAINER.NAME, cfg.FED.CLIENTS, cfg.DATASET.NAME) == ("FedTV", 10, "OxfordPets")
    assert cfg.DATASET.ROOT == "DATA/" and job.origins["FED.CLIENTS"] == "flag --num-users"


@pytest.mark.parametrize("tail, rate, origin", [
    ("", 0.4, "configs/trainers/fedtv.yaml"), ("--lr 0.2", 0.2, "flag --lr"),
    ("--lr 0.2 OPTIM.LR 0.1", 0.1, "opts"), ("OPTIM.LR 0.1 --lr 0.2", 0.1, "opts"),
])  # fmt: skip
def test_precedence_whatever_the_order_of_words(house: Path, tail: str, rate: float, origin: str):
    (job,) = jobs(f"--dataset oxford_pets {tail}").jobs
    assert (job.cfg.OPTIM.LR, job.origins["OPTIM.LR"]) == (rate, origin)
    assert job.cfg.DATASET.NUM_SHOTS == 8 and job.cfg.OPTIM.MOMENTUM == 0.5


@pytest.mark.parametrize(("tail", "said"), [
    ("--partition iid --beta 0.3", "FED.BETA 0.3 has no effect with FED.PARTITION iid; it is for "
     "dirichlet, superclass_dirichlet, quantity, domain_dirichlet"),
    ("--partition dirichlet --repeat-rate 0.2", "FED.REPEAT_RATE 0.2 has no effect with "
     "FED.PARTITION dirichlet; it is for disjoint"),
    ("--partition dirichlet FED.CLASSES_PER_CLIENT 3", "it is for n_classes"),
    ("--partition dirichlet --beta 0.3 --repeat-rate 0.0", ""), ("--partition iid", ""),
])
def test_what_a_partition_does_not_use_is_said(house: Path, tail: str, said: str) -> None:
    notes = [n for n in jobs(f"--dataset oxford_pets {tail}").notes if "has no effect" in n]
    assert len(notes) == bool(said) and said in "".join(notes)


def test_demo_lies_between_trainer_file_and_flags(house: Path):
    (job,) = jobs("--demo").jobs
    assert (job.cfg.DATASET.NAME, job.cfg.OPTIM.LR, job.cfg.OPTIM.MOMENTUM) == ("shapes", 0.3, 0.5)
    assert jobs("--demo --lr 0.2").jobs[0].cfg.OPTIM.LR == 0.2
    assert "--demo has its own data set" in mistakes("--demo --dataset oxford_pets")[0]


def test_without_a_dataset_one_sentence_lists_them(house: Path):
    for line in ("", "--trainer FedTV", "--opts DATASET.NAME="):
        words = [*line.rstrip("=").split(), *[""] * line.endswith("=")]
        with pytest.raises(ConfigError) as caught:
            resolve(parse(words))
        sentence = str(caught.value)
        assert "\n" not in sentence
        assert "--dataset NAME" in sentence and "oxford_pets" in sentence
    assert jobs("DATASET.NAME mine").jobs[0].cfg.DATASET.NAME == "mine"
    assert "not both" in mistakes("--dataset oxford_pets --dataset-config-file x.yaml")[0]
    assert "did you mean 'oxford_pets'" in mistakes("--dataset oxford_pet")[0]
    assert jobs("--dataset pets").jobs[0].cfg == jobs("--dataset oxford_pets").jobs[0].cfg


def test_seeds_vary_both_unless_the_data_seed_is_given(house: Path):
    three = jobs("--dataset oxford_pets --seeds 1 2 3").jobs
    assert [(j.cfg.SEED, j.cfg.DATA_SEED) for j in three] == [(1, 1), (2, 2), (3, 3)]
    fixed = jobs("--dataset oxford_pets --seeds 1,2 --data-seed 9").jobs
    assert [(j.cfg.SEED, j.cfg.DATA_SEED) for j in fixed] == [(1, 9), (2, 9)]
    assert fixed[0].origins["SEED"] == "flag --seeds"
    assert fixed[0].origins["DATA_SEED"] == "flag --data-seed"
    for bad in ("--seeds 1 2 --seed 3", "--seeds 1 SEED 3", "--seeds 1 1", "--seeds a", "--seeds"):
        assert "seed" in mistakes(f"--dataset oxford_pets {bad}")[0]


def test_trainers_own_flags(house: Path):
    (job,) = jobs("--dataset oxford_pets --bottleneck 4 --variant fixed").jobs
    assert (job.cfg.TRAINER.FEDTV.RANK, job.cfg.TRAINER.FEDTV.VARIANT) == (4, "fixed")
    assert job.origins["TRAINER.FEDTV.RANK"] == "flag --bottleneck"
    (line,) = mistakes("--dataset oxford_pets --n_ctx 4")
    assert "sets TRAINER.FEDTV.N_CTX, but FedTV has no such option" in line
    asked = jobs("--dataset oxford_pets --mu 0.5")
    assert "never uses it" in asked.notes[0]
    assert mistakes("--dataset oxford_pets --bottleneck 0")[0].startswith("flag --bottleneck: ")


def test_trainer_name_is_canonical_and_opts_beat_flag(house: Path):
    assert jobs("--dataset oxford_pets --trainer fedtv").jobs[0].cfg.TRAINER.NAME == "FedTV"
    own = jobs("--dataset oxford_pets --trainer ./my.py:Mine").jobs[0]
    assert own.cfg.TRAINER.NAME == "./my.py:Mine"
    line = "--dataset oxford_pets --trainer fedtv TRAINER.NAME x"
    assert "unknown trainer 'x'" in mistakes(line)[0]
    (house / "t.yaml").write_text("TRAINER: {NAME: y}\n")
    assert "unknown trainer 'y'" in mistakes("--dataset oxford_pets --config-file t.yaml")[0]


def test_unused_keys_are_said(house: Path):
    assert "TRAIN.PRINT_FREQ" in jobs("--dataset oxford_pets TRAIN.PRINT_FREQ 3").notes[0]


@pytest.mark.parametrize("kind", SKEWED)
def test_all_images_where_clients_share_each_class(house: Path, kind: str):
    (house / "configs/datasets/dtd.yaml").write_text("DATASET: {NAME: DescribableTextures}\n")

    def shots(line: str) -> tuple[int, str]:
        (job,) = jobs(f"{line} --partition {kind}").jobs
        return job.cfg.DATASET.NUM_SHOTS, job.origins["DATASET.NUM_SHOTS"]

    assert shots("--dataset dtd") == (-1, f"because FED.PARTITION is {kind}")
    assert shots("--dataset dtd --shots 16") == (16, "flag --shots")
    assert shots("--dataset dtd DATASET.NUM_SHOTS 16") == (16, "opts")
    assert shots("--dataset oxford_pets") == (8, "configs/datasets/oxford_pets.yaml")
    assert shots("--dataset dtd FED.INDEX_FILE x.json") == (16, "default")
    assert shots("--dataset dtd DATASET.FEWSHOT_FILE x.json") == (16, "default")


@pytest.mark.parametrize("kind", sorted(set(PARTITIONS) - set(SKEWED)))
def test_k_shots_where_clients_have_their_own(house: Path, kind: str):
    (job,) = jobs(f"DATASET.NAME DescribableTextures --partition {kind}").jobs
    assert job.cfg.DATASET.NUM_SHOTS == 16


@pytest.mark.parametrize(("line", "partition", "clients"), [
    ("", "domain", 3), ("--num-users 6", "domain", 6), ("FED.CLIENTS 4", "domain", 4),
    ("--partition iid", "iid", 4), ("--partition domain_dirichlet", "domain_dirichlet", 3),
])  # fmt: skip
def test_clients_follow_the_domains_that_are_left(
    house: Path, line: str, partition: str, clients: int
):
    (house / "configs/datasets/pacs.yaml").write_text(
        "DATASET: {NAME: PACS}\nFED: {PARTITION: domain, CLIENTS: 4}\n"
    )
    plan = jobs(f"--dataset pacs --held-out photo {line}")
    fed = plan.jobs[0].cfg.FED
    got = (fed.PARTITION, fed.CLIENTS)
    assert got == (partition, clients)
    said = [n for n in plan.notes if "FED.CLIENTS 3: 1 for each of the 3 domains other than" in n]
    assert len(said) == (clients == 3)
    assert jobs("--dataset pacs").jobs[0].cfg.FED.CLIENTS == 4


def test_what_works_as_it_stands_is_left(house: Path):
    """Twelve clients go into four domains and into three."""
    (house / "configs/datasets/pacs.yaml").write_text(
        "DATASET: {NAME: PACS}\nFED: {PARTITION: domain, CLIENTS: 12}\n"
    )
    assert jobs("--dataset pacs --held-out photo").jobs[0].cfg.FED.CLIENTS == 12
    (job,) = jobs("DATASET.NAME PACS --held-out photo").jobs
    assert (job.cfg.FED.PARTITION, job.cfg.FED.CLIENTS) == ("domain", 3)
    assert job.origins["FED.PARTITION"] == "because FED.HELD_OUT_DOMAIN is set"


def test_a_saved_config_without_a_later_key_means_what_it_meant(tmp_path: Path) -> None:
    """AFL's VARIANT came later: before it runs did what is called published now."""
    file, key = tmp_path / "config.yaml", "TRAINER.AFL.VARIANT"

    def variant(more: str = "", **changes: str) -> str:
        file.write_text(f"TRAINER:\n  NAME: AFL\n{more}")
        return str(run_config(tmp_path, changes).TRAINER.AFL.VARIANT)

    assert variant() == "published"
    assert variant("  AFL: {VARIANT: fixed}\n") == variant(**{key: "fixed"}) == "fixed"
    assert variant("  AFL: {KEEP: 0.5}\n") == "published"


@pytest.mark.parametrize(("line", "shots"), [
    ("DATASET.NAME mine --partition iid", -1), ("DATASET.NAME mine --partition domain", -1),
    ("DATASET.NAME mine --partition iid --shots 4", 4),
    ("DATASET.NAME mine --partition domain --shots 4", 4), ("DATASET.NAME mine", 16),
    ("DATASET.NAME mine --partition n_classes", 16), ("--dataset oxford_pets --partition iid", 8),
])  # fmt: skip
def test_own_images_are_all_used_where_nobody_said_shots(house: Path, line: str, shots: int):
    assert shots == jobs(line).jobs[0].cfg.DATASET.NUM_SHOTS
