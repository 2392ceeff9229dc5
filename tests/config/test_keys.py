"""Keys of Dassl, of CoOp's family, and ours."""

from __future__ import annotations

from pathlib import Path

from fedvlm.config.aliases import family_aliases, notes_on_epochs
from fedvlm.config.build import config_lines, unused_keys
from tests.config.layers import SCHEMA, build, mistakes, write


def test_dassl_keys_are_all_there():
    keys = [
        "VERSION", "OUTPUT_DIR", "RESUME", "SEED", "VERBOSE", "INPUT.SIZE", "INPUT.GB_K",
        "DATASET.CIFAR_C_LEVEL", "DATALOADER.TRAIN_U.SAME_AS_X", "MODEL.HEAD.DROPOUT",
        "OPTIM.RMSPROP_ALPHA", "OPTIM.WARMUP_RECOUNT", "TRAIN.PRINT_FREQ",
        "TEST.PER_CLASS_RESULT", "TRAINER.FIXMATCH.WEIGHT_U", "DATASET.SUBSAMPLE_CLASSES",
    ]  # fmt: skip
    assert [k for k in keys if k not in SCHEMA] == []
    assert "USE_CUDA" in family_aliases()


def test_coop_trainer_yaml_loads_as_it_is(tmp_path: Path):
    path = write(tmp_path / "vit_b16.yaml", (
        "DATALOADER:\n  TRAIN_X:\n    BATCH_SIZE: 32\n  TEST:\n    BATCH_SIZE: 100\n"
        "  NUM_WORKERS: 8\nINPUT:\n  SIZE: (224, 224)\n  INTERPOLATION: 'bicubic'\n"
        "  PIXEL_MEAN: [0.48145466, 0.4578275, 0.40821073]\n"
        "  TRANSFORMS: ['random_resized_crop', 'random_flip', 'normalize']\n"
        "OPTIM:\n  NAME: 'sgd'\n  LR: 0.002\n  MAX_EPOCH: 200\n  LR_SCHEDULER: 'cosine'\n"
        "  WARMUP_EPOCH: 1\n  WARMUP_TYPE: 'constant'\n  WARMUP_CONS_LR: 1e-5\n"
        "TRAIN:\n  PRINT_FREQ: 5\nMODEL:\n  BACKBONE:\n    NAME: 'ViT-B/16'\n"
    ))  # fmt: skip
    cfg, origins = build(trainer=path)
    assert cfg.OPTIM.WARMUP_CONS_LR == 1e-5 and cfg.INPUT.SIZE == (224, 224)
    assert cfg.FED.LOCAL_EPOCHS == 200
    assert origins["FED.LOCAL_EPOCHS"] == f"{path}, as OPTIM.MAX_EPOCH"
    assert notes_on_epochs(cfg, origins) == [
        "OPTIM.MAX_EPOCH 200 is taken as 200 local epochs in each round; --local-epochs N sets it "
        f"({path} also sets OPTIM.LR_SCHEDULER, OPTIM.WARMUP_EPOCH, OPTIM.WARMUP_TYPE, in place "
        "of the defaults)"
    ]
    assert notes_on_epochs(*build("FED.LOCAL_EPOCHS", "5", trainer=path)) == []
    assert origins["OPTIM.LR"] == str(path) and origins["OPTIM.MOMENTUM"] == "default"
    assert {"INPUT.SIZE", "TRAIN.PRINT_FREQ"} <= set(unused_keys(origins, SCHEMA))
    assert "OPTIM.LR" not in unused_keys(origins, SCHEMA)


def test_family_keys_map_to_ours_and_say_so():
    opts = "DATASET.USERS 4 DATASET.PARTITION homo DATASET.IID False OPTIM.ROUND 3 USE_CUDA False"
    cfg, origins = build(*opts.split(), "DATASET.USEALL", "True", "TEST.FINAL_MODEL", "best_val")
    assert (cfg.FED.CLIENTS, cfg.FED.PARTITION, cfg.FED.ROUNDS) == (4, "iid", 3)
    assert (cfg.DEVICE, cfg.DATASET.NUM_SHOTS, cfg.TEST.SELECT) == ("cpu", -1, "val")
    assert "FED.CLIENTS 4" in "\n".join(config_lines(cfg, origins, SCHEMA))
    assert origins["FED.CLIENTS"] == "opts, as DATASET.USERS"
    assert build("DATASET.IID", "True")[0].FED.PARTITION == "iid"
    assert build("DATASET.IID", "False")[0].FED.PARTITION == "disjoint"


def test_half_precision_is_bf16_here():
    (line,) = mistakes("MODEL.PREC", "fp16")
    assert line.endswith("got 'fp16'; use bf16")


def test_two_spellings_that_disagree_are_refused():
    (line,) = mistakes("DATASET.USERS", "4", "FED.CLIENTS", "5")
    assert "keep one" in line
    assert build("DATASET.USERS", "5", "FED.CLIENTS", "5")[0].FED.CLIENTS == 5


def test_switches_without_equivalent_may_only_be_off():
    build("DATASET.SPLIT_CLIENT", "False")
    (line,) = mistakes("DATASET.SPLIT_CLIENT", "True")
    assert "not supported" in line


def test_coops_own_options_set_ours_or_are_refused():
    cfg, origins = build("TRAINER.COOP.N_CTX", "4", "TRAINER.COOP.PREC", "fp32")
    assert cfg.PEFT.N_CTX == 4 and cfg.MODEL.PREC == "fp32"
    assert origins["PEFT.N_CTX"] == "opts, as TRAINER.COOP.N_CTX"
    lines = mistakes(
        "TRAINER.COOP.PREC", "fp16",
        "TRAINER.COOP.CLASS_TOKEN_POSITION", "middle", "TRAINER.COCOOP.N_CTX", "4",
        "TRAINER.MAPLE.PROMPT_DEPTH", "9",
    )
    assert [line.split()[1] for line in lines] == [
        "TRAINER.COOP.PREC", "TRAINER.COOP.CLASS_TOKEN_POSITION", "TRAINER.COCOOP.N_CTX",
        "TRAINER.MAPLE.PROMPT_DEPTH",
    ]
    assert "--trainer ./coop.py:CoOp" in lines[1] and "--trainer ./cocoop.py" in lines[2]
    cfg, _ = build("TRAINER.COOP.CSC", "True", "TRAINER.COOP.CTX_INIT", "a photo of a")
    assert cfg.PEFT.CSC and cfg.PEFT.CTX_INIT == "a photo of a"
    cfg, _ = build("TRAINER.COOP.CLASS_TOKEN_POSITION", "end")
    assert cfg.PEFT.N_CTX == 16
