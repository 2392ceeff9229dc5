"""Which runs may share a table, filters, and words that are not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.report.collect import collect
from fedvlm.report.tables.table import ReportTable, Spec, tables
from tests.report.table_runs import write_run, write_seeds

LAST = {"personal": 50.0}


def table(root: Path, **spec: Any) -> ReportTable:
    (found,) = tables(collect([root]), Spec(**spec))
    return found


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [
        ("rounds", 2, 5), ("local_epochs", 1, 2), ("views", 1, 4), ("shots", 16, 4),
        ("partition", "disjoint-K10-f1", "dirichlet-0.3-K20-f1"), ("backbone", "tiny", "RN50"),
        ("backbone_digest", "b" * 64, "c" * 64), ("budget", "rounds", "steps"),
        ("selection", "last", "val"), ("setting", "personal", "base2new"),
        ("data_digest", "d" * 64, "e" * 64), ("invented_later", "x", "y"),
    ],
)
def test_another_protocol_is_refused_by_name(tmp_path: Path, key: str, one: Any, other: Any):
    a = write_run(tmp_path, "A", last=LAST, **{key: one})
    b = write_run(tmp_path, "B", last=LAST, **{key: other})
    with pytest.raises(ConfigError) as refused:
        table(tmp_path)
    said = str(refused.value)
    assert key in said and str(a) in said and str(b) in said and "--where" in said
    assert str(one)[:8] in said and str(other)[:8] in said and "\n" not in said
    mixed = table(tmp_path, mixed=(key,))
    assert "Mixed on request" in mixed.caption and key in mixed.caption
    axis = table(tmp_path, cols=(key,))
    assert len(axis.columns) == 2 and "Mixed" not in axis.caption


def test_mixed_allows_the_named_key_only(tmp_path: Path):
    write_run(tmp_path, "A", last=LAST)
    write_run(tmp_path, "B", last=LAST, rounds=5, shots=4, data_digest="f" * 64)
    with pytest.raises(ConfigError, match="rounds is 2"):
        table(tmp_path, mixed=("shots",))
    assert "rounds (2, 5)" in table(tmp_path, mixed=()).caption
    with pytest.raises(ConfigError, match="did you mean 'rounds'"):
        table(tmp_path, mixed=("round",))


def test_methods_may_differ_in_hyper_parameters_but_not_in_batch_size(tmp_path: Path):
    write_run(tmp_path, "A", last=LAST)
    write_run(tmp_path, "B", last=LAST, config={"OPTIM.LR": 0.5})
    assert table(tmp_path).rows == ("A", "B")
    write_run(tmp_path, "C", last=LAST, config={"DATALOADER.TRAIN_X.BATCH_SIZE": 8})
    with pytest.raises(ConfigError, match=r"TRAIN_X\.BATCH_SIZE is 32 in .* and 8 in "):
        table(tmp_path)


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [
        ("FED.PLAIN", False, True), ("FED.LEGACY", False, True), ("OPTIM.CLOCK", "run", "round"),
        ("MODEL.LOADER", "open_clip", "timm"), ("FED.FIRST_ROUND_ALL", True, False),
        ("FED.INVENTED_LATER", 1, 2), ("DATASET.ON_CORRUPT", "skip", "refuse"),
        ("FED.EARLY_STOP", None, 3),  # None: left out of an identity, which is its neutral 0
        ("FED.AGGREGATOR", None, "median"),
        ("images", "aaaa", "bbbb"), ("transform", "cccc", "dddd"),
        ("device", "cpu", "cuda"),
    ],
)
def test_what_nobody_thought_of_is_refused_too(tmp_path: Path, key: str, one: Any, other: Any):
    """Whatever changes numbers, outside the method's own namespace, must be the same."""
    def write(trainer: str, value: Any, **more: Any) -> Path:
        part = {} if value is None else {key: value}
        read = {"OPTIM.LR_SCHEDULER": "cosine", "FED.FRAC": 0.5}  # else some keys are not read
        where = {"config": read | part} if key.isupper() else {"identity": part}
        return write_run(tmp_path, trainer, last=LAST, **where, **more)

    a, b = write("A", one), write("B", other)
    with pytest.raises(ConfigError) as refused:
        table(tmp_path)
    said = str(refused.value)
    assert key in said and str(a) in said and str(b) in said and f"--mixed {key}" in said
    assert str(other)[:8] in said and "\n" not in said
    assert f"{key} (" in table(tmp_path, mixed=(key,)).caption
    assert len(table(tmp_path, rows=("trainer", key)).rows) == 2


def test_own_settings_layout_and_other_data_sets_may_differ(tmp_path: Path):
    write_run(tmp_path, "A", last=LAST, config={"FED.PLAIN": False, "DATASET.ON_CORRUPT": "skip"})
    own = {"TRAINER.B.MU": 1, "OPTIM.LR": 0.5, "PEFT.RANK": 4, "FED.CHUNK": 7, "FED.SITES": "0-4",
           "FED.FINETUNE_LR": 0.1, "TEST.COMPUTE_CMAT": True}
    for key, value in own.items():
        config = {"FED.PLAIN": False, "DATASET.ON_CORRUPT": "skip", key: value}
        write_run(tmp_path, f"B{key}", last=LAST, config=config)
    write_run(tmp_path, "A", "DTD", last=LAST, config={"FED.PLAIN": True})
    write_run(tmp_path, "C", last=LAST, tag="median", config={
        "FED.PLAIN": False, "DATASET.ON_CORRUPT": "skip", "FED.AGGREGATOR": "median"})
    assert len(table(tmp_path).rows) == 9


def test_a_key_that_a_protocol_word_stands_for_goes_with_it(tmp_path: Path):
    for shots in (1, 2):
        write_run(tmp_path, "A", last=LAST, shots=shots, data_digest=f"{shots}" * 64,
                  config={"DATASET.NUM_SHOTS": shots})
    assert table(tmp_path, cols=("shots",)).columns == ("shots 1", "shots 2")
    assert "shots (1, 2)" in table(tmp_path, cols=("data_digest",), mixed=("shots",)).caption


def test_mixed_says_which_data_set_has_which_value(tmp_path: Path):
    write_run(tmp_path, "A", "Pets", last=LAST)
    write_run(tmp_path, "A", "DTD", last=LAST, shots=4)
    assert "shots (4: DTD; 16: Pets)" in table(tmp_path, mixed=("shots",)).caption


def test_one_identity_with_two_numbers_is_refused_whatever_the_folders_are_called(tmp_path: Path):
    """Else the folder's name decides which of them is shown."""
    a = write_run(tmp_path, "A", last={"personal": 56.9, "seconds": 1.0}, folder="old")
    b = write_run(tmp_path, "A", last={"personal": 55.5, "seconds": 9.0}, folder="new")
    write_run(tmp_path, "B", last=LAST)
    with pytest.raises(ConfigError) as refused:
        table(tmp_path, mixed=())
    said = str(refused.value)
    assert str(a) in said and str(b) in said and "two runs of one identity" in said
    assert "last.personal is 55.5 and 56.9" in said


def test_a_copy_is_dropped_with_a_note(tmp_path: Path):
    """Wall time is no number, and what only a newer version writes is no difference."""
    a = write_run(tmp_path, "A", last=LAST | {"seconds": 1.0}, folder="x")
    b = write_run(tmp_path, "A", last=LAST | {"seconds": 9.0}, folder="y",
                  sections={"gain": {"points": 1.0}})
    found = table(tmp_path, metrics=("personal",))
    assert found.cells[0][0].n == 1
    assert f"1 equal copy of a run dropped: {b} (a copy of {a})" in found.notes


def test_final_fine_tuning_is_a_variant_where_a_tag_names_it(tmp_path: Path):
    key = "FED.FINETUNE_EPOCHS"
    write_seeds(tmp_path, "A", [1.0], config={key: -1})
    write_seeds(tmp_path, "A", [2.0], config={key: 5}, tag="ft")
    (found,) = tables(collect([tmp_path]), Spec())
    assert found.rows == ("A", "A (ft)")
    assert f"set by {key}: A (ft) 5; all others use the method's default" in " ".join(found.notes)
    write_seeds(tmp_path, "B", [2.0], config={key: 5})
    with pytest.raises(ConfigError, match=f"{key} is -1 in .* and 5 in"):
        tables(collect([tmp_path]), Spec())


def test_seeds_of_a_cell_have_one_config(tmp_path: Path):
    write_run(tmp_path, "A", seed=1, last=LAST, folder="A")
    write_run(tmp_path, "A", seed=2, last=LAST, folder="A", config={"OPTIM.LR": 0.5})
    with pytest.raises(ConfigError, match=r"A, Pets: .*OPTIM\.LR is 0\.01 in .* and 0\.5 in "):
        table(tmp_path)
    assert "OPTIM.LR (0.01, 0.5)" in table(tmp_path, mixed=("OPTIM.LR",)).caption
    assert table(tmp_path, where=(("OPTIM.LR", "0.5"),)).n == 1


def test_two_runs_of_one_seed_are_refused_and_a_copy_counts_once(tmp_path: Path):
    write_run(tmp_path / "x", "A", last=LAST)
    write_run(tmp_path / "copy", "A", last=LAST)
    assert table(tmp_path).cells[0][0].n == 1
    write_run(tmp_path, "A", last=LAST, config={"OPTIM.LR": 0.5})
    for mixed in (None, ()):
        with pytest.raises(ConfigError, match=r"same seeds and differ in OPTIM\.LR"):
            table(tmp_path, mixed=mixed)


def test_a_run_without_training_has_no_rounds_to_agree_in(tmp_path: Path):
    write_run(tmp_path, "A", last=LAST)
    write_run(tmp_path, "ZeroShot", last=LAST, rounds=1, local_epochs=5,
              info={"totals": {"local_steps": 0}}, config={"DATALOADER.TRAIN_X.BATCH_SIZE": 1})
    found = table(tmp_path)
    assert found.rows == ("A", "ZeroShot") and "2 rounds" in found.caption


def test_other_method_needs_an_axis(tmp_path: Path):
    write_run(tmp_path, "A", last=LAST)
    write_run(tmp_path, "B", last=LAST)
    with pytest.raises(ConfigError, match="trainer is A in .* and B in "):
        table(tmp_path, rows=("backbone",))


def test_filters(tmp_path: Path):
    for trainer in ("A", "B", "C"):
        write_seeds(tmp_path, trainer, [50.0, 60.0], tag="" if trainer == "A" else "t")
    assert table(tmp_path, where=(("trainer", "A"), ("trainer", "B (t)"))).rows == ("A", "B (t)")
    assert table(tmp_path, where=(("tag", ""),)).rows == ("A",)
    assert table(tmp_path, exclude=(("tag", "t"), ("seed", "2"))).n == 1
    digest = collect([tmp_path]).runs[0].protocol["data_digest"]
    assert table(tmp_path, where=(("data_digest", digest[:8]),)).n == 1
    name = str(collect([tmp_path]).runs[0].protocol["dataset"])
    for word in (name.lower(), f"{name[0]}_{name[1:].upper()}"):  # as flags of a run take it
        assert table(tmp_path, where=(("dataset", word), ("trainer", "a"))).rows == ("A",)
    with pytest.raises(ConfigError, match="several values: seed=1 seed=3"):
        table(tmp_path, where=(("seed", "1,3"),))
    with pytest.raises(ConfigError, match="leave none of 6 runs.*the runs have seed 1, 2"):
        table(tmp_path, where=(("seed", "7"),))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"rows": ("trainr",)}, "--rows trainr.*did you mean 'trainer'"),
        ({"cols": ("datset",)}, "--cols datset.*did you mean 'dataset'"),
        ({"where": (("shot", "1"),)}, "--where shot.*did you mean 'shots'"),
        ({"metrics": ("persnal",)}, "--metric persnal.*did you mean 'personal'"),
        ({"metrics": ("totals.byte_up",)}, "did you mean 'totals.bytes_up'"),
        ({"metrics": ("rounds_to:x",)}, "wants an accuracy"),
        ({"rows": ("dataset",), "cols": ("dataset",)}, "both name dataset"),
    ],
)
def test_unknown_words_get_the_nearest_known_one(tmp_path: Path, spec: dict[str, Any], said: str):
    write_run(tmp_path, "A", last=LAST)
    with pytest.raises(ConfigError, match=said):
        table(tmp_path, **spec)


def test_unreadable_config_is_told_and_not_compared(tmp_path: Path):
    path = write_run(tmp_path, "A", last=LAST)
    write_run(tmp_path, "B", last=LAST)
    (path / "manifest.json").write_text("{")
    assert any("were not compared" in note for note in table(tmp_path).notes)
