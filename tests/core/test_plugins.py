"""Modules found by listing a folder: names without an import, the nearest name in the error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.core.plugins import Plugins, own_class


class Base:
    """What a plugin of the test derives from."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A package with two plugins and a helper; its name is the test's."""
    package = f"plugins_of_{request.node.name.partition('[')[0]}"
    (tmp_path / package).mkdir()
    for name, text in {
        "__init__": "", "helper": "import missing_package\nAN_ENGINE = 'none'\n",
        "b_two": 'ENGINE = "two-b"\n', "a": 'ENGINE = (\n    "one", "uno",\n)\nclass Own: ...\n',
    }.items():
        (tmp_path / package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return package


def test_names_are_read_without_an_import(folder: str) -> None:
    assert Plugins(folder, "ENGINE", "engine").names() == ("one", "uno", "two-b")
    assert Plugins(folder, "ENGINE", "engine", ("two-b", "gone")).names()[0] == "two-b"
    assert [m for m in sys.modules if m.startswith(f"{folder}.")] == []


def test_one_module_is_imported_and_spelling_is_forgiven(folder: str) -> None:
    plugins = Plugins(folder, "ENGINE", "engine")
    assert plugins.load("Two_B").ENGINE == "two-b"
    assert [m for m in sys.modules if m.startswith(f"{folder}.")] == [f"{folder}.b_two"]
    assert plugins.load("uno") is plugins.load("one")
    with pytest.raises(ConfigError) as error:
        plugins.load("tow-b")
    assert str(error.value) == "unknown engine 'tow-b'; did you mean 'two-b'? (known: one, uno, " \
                               "two-b)"


def test_two_plugins_of_one_name_are_refused(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder / "c.py").write_text('ENGINE = "uno"\n')
    with pytest.raises(TypeError, match="both named 'uno'"):
        Plugins(folder, "ENGINE", "engine").names()


def test_the_class_of_a_plugin_is_its_only_one(folder: str) -> None:
    module = Plugins(folder, "ENGINE", "engine").load("one")
    with pytest.raises(TypeError, match="must have one Base, it has 0"):
        own_class(module, Base)
    module.Base = Base  # imported, not its own
    module.Mine = type("Mine", (Base,), {"__module__": module.__name__})
    assert own_class(module, Base) is module.Mine
