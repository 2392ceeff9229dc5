"""Known defects of published domain code: pairing, seeds, endless draws, lab2cname."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.data.datasets import load_dataset
from fedvlm.data.federated import FederatedData, build_federation
from tests.data.miniatures.domains import CLASSES, write_domain_set
from tests.data.miniatures.own import config

PLACES = [("DomainNet", "FedBN pickles", 6), ("OfficeCaltech10", "domain tree", 4)]


def federation(name: str, root: Path, **keys: object) -> FederatedData:
    return build_federation(config(root, root / "c", DATASET__NAME=name, **keys))


@pytest.mark.parametrize("kind", ["domain", "domain_dirichlet"])
@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize(("name", "layout", "clients"), PLACES)
def test_labels_belong_to_their_images(
    name: str, layout: str, clients: int, kind: str, each: int, tmp_path: Path
) -> None:
    write_domain_set(name, layout, tmp_path)
    data = federation(name, tmp_path, FED__PARTITION=kind, FED__CLIENTS=each * clients)
    held = []
    for number, client in enumerate(data.clients):
        for part in ("train", "val", "test"):
            for i in getattr(client, part):
                sample = data.samples[i]
                domain, folder, _ = sample.key.split("/")
                assert folder == sample.classname == data.classnames[sample.label]
                assert data.labels[i] == sample.label
                assert domain == data.domain_names[sample.domain]
                assert domain == data.domain_names[number // each] == client.domain
                held.append(sample.key)
    assert len(held) == len(set(held))


@pytest.mark.parametrize("kind", ["domain", "domain_dirichlet"])
def test_the_split_follows_the_seed(kind: str, tmp_path: Path) -> None:
    write_domain_set("OfficeCaltech10", "FedBN pickles", tmp_path)

    def shares(seed: int) -> list[list[str]]:
        data = federation(
            "OfficeCaltech10", tmp_path, FED__PARTITION=kind, FED__CLIENTS=8, DATA_SEED=seed
        )
        return [[data.samples[i].key for i in client.train] for client in data.clients]

    one = shares(1)
    assert one == shares(1)
    assert len({str(shares(seed)) for seed in range(1, 6)}) > 1


def test_classes_of_one_size_are_cut_differently(tmp_path: Path) -> None:
    """One seed for every class gives all classes the same shares: no skew of labels at all."""
    write_domain_set("OfficeCaltech10", "FedBN pickles", tmp_path)
    keys = {"FED__PARTITION": "domain_dirichlet", "FED__CLIENTS": 8, "FED__BETA": 0.3}
    data = federation("OfficeCaltech10", tmp_path, **keys)
    counts = [tuple(sorted(data.labels[c.train].tolist())) for c in data.clients]
    shares = [tuple(mine.count(label) for label in range(3)) for mine in counts]
    assert any(len(set(share)) > 1 for share in shares)


def test_a_minimum_out_of_reach_ends(tmp_path: Path) -> None:
    write_domain_set("OfficeCaltech10", "FedBN pickles", tmp_path)
    keys = {"FED__PARTITION": "domain_dirichlet", "FED__CLIENTS": 8, "FED__BETA": 0.1}
    with pytest.raises(ConfigError, match="FED.MIN_SIZE"):
        federation("OfficeCaltech10", tmp_path, FED__MIN_SIZE=11, **keys)


@pytest.mark.parametrize(("name", "layout", "_clients"), PLACES)
def test_lab2cname_goes_from_label_to_name(
    name: str, layout: str, _clients: int, tmp_path: Path
) -> None:
    write_domain_set(name, layout, tmp_path)
    data = load_dataset(config(tmp_path, tmp_path / "c", DATASET__NAME=name))
    assert data.lab2cname == dict(enumerate(CLASSES[name]))
    assert isinstance(data.classnames, list)
