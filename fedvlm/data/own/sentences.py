"""``DATASET.TEMPLATES``: a file of templates, or of sentences for each class; perhaps by client."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedvlm.core.errors import DataError, did_you_mean, fold
from fedvlm.core.files import user_path
from fedvlm.core.spelling import check_described, described, quote_name

MOST = 64 << 20  # bytes of such a file
CLIENTS = "clients"  # the key of an object; a list of sentences makes it a class


def read_templates(word: str) -> list[str]:
    """Return the templates of a file, but for those of single clients.

    Args:
        word: a text file with one template on each line, ``{}`` for the class name; or JSON with a
            list of sentences for each class name, as CuPL's files are.

    Returns:
        Templates; none where the file has those of single clients only.

    Raises:
        DataError: no such file, or something else in it.
    """
    return _read(word)[0]


def read_client_templates(
    word: str, client_names: Sequence[str], clients: int, classnames: Sequence[str]
) -> dict[int, list[str]]:
    """Return the templates of clients that have their own, by number, in the file's order.

    Args:
        word: as for ``read_templates``. Under the key ``clients`` JSON has an object of clients, by
            name or number: each a list of templates, or an object with sentences for each class.
        client_names: by number; empty where clients have none.
        clients: how many there are.

    Raises:
        DataError: no such client, one that is named twice, or a class without sentences.
    """
    where, found = f"DATASET.TEMPLATES '{word}'", dict[int, list[str]]()
    said = dict[int, str]()
    for name, texts in _read(word)[1].items():
        number = _client(where, name, client_names, clients)
        if number in found:
            raise DataError(f"{where}: {quote_name(said[number])} and {quote_name(name)} are the "
                            "same client: write it once")
        check_described(texts, classnames, f"{where}, client {quote_name(name)},")
        found[number], said[number] = texts, name
    return found


def match_client_templates(word: str, numbers: Sequence[int]) -> dict[int, list[str]]:
    """Return what ``read_client_templates`` returned, without the clients' names.

    Args:
        numbers: of the clients, in the file's order. Where they are more or less than the file's
            now, some are left out: a digest over them (``spelling.texts_covered``) then shows it.
    """
    return dict(zip(numbers, _read(word)[1].values(), strict=False))


def _client(where: str, name: str, names: Sequence[str], clients: int) -> int:
    """Return a client's number; a name counts first, and a number where no name is one."""
    if name in names:
        return list(names).index(name)
    numbers = not any(n.isdecimal() for n in names)
    if numbers and name.isascii() and name.isdecimal() and int(name) < clients:
        return int(name)
    ways = [f"a number from 0 to {clients - 1}"] if numbers else []
    ways += ["a name that the data give a client"] if names else []
    raise DataError(f"{where}: there is no client {quote_name(name)}{did_you_mean(name, names)} "
                    f"(known: {' or '.join(ways)})")


def _read(word: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the templates of everybody, and of single clients by the file's names."""
    path = user_path(word)
    if not path.is_file():
        raise DataError(f"DATASET.TEMPLATES '{word}': no such file")
    if path.stat().st_size > MOST:
        raise DataError(f"DATASET.TEMPLATES '{word}' has more than {MOST:,} bytes")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"DATASET.TEMPLATES '{word}' is no UTF-8 text: {error.reason}") from error
    if text.lstrip()[:1] == "{" and path.suffix == ".json":
        return _by_class(path, text)
    return _by_line(path, text), {}


def _by_line(path: Path, text: str) -> list[str]:
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    for number, line in lines:
        if line.count("{}") != 1:
            raise DataError(
                f"{path}, line {number}: '{line[:80]}' must hold {{}} once, for the class name "
                "(sentences for each class are a .json file: {\"cat\": [\"a sentence\", ...]})"
            )
    if not lines:
        raise DataError(f"{path} has no template")
    return [line for _, line in lines]


def _by_class(path: Path, text: str) -> tuple[list[str], dict[str, list[str]]]:
    try:
        table = json.loads(text, object_pairs_hook=partial(_once, path))
    except ValueError as error:
        raise DataError(f"{path} is no JSON: {error}") from error
    except RecursionError as error:
        raise DataError(f"{path}: its lists stand in each other too deeply") from error
    if len(table) == 1 and any(_is_amiss(name, said) for name, said in table.items()):
        raise DataError(f"{path}: write templates of single clients as "
                        '{"clients": {"1": ["a photo of a {}."]}}, by a client\'s name or number')
    own = table.pop(CLIENTS) if isinstance(table.get(CLIENTS), dict) else {}
    shared = _sentences(str(path), table) if table or not own else []
    return shared, {name: _of_client(path, name, said) for name, said in own.items()}


def _is_amiss(name: str, said: Any) -> bool:
    """Say whether a file's only key means single clients but does not hold an object of them.

    A list of sentences is those of a class of that name.
    """
    if fold(name) != CLIENTS:
        return False
    if isinstance(said, dict):
        return name != CLIENTS or not said
    return not said or "{}" in json.dumps(said)


def _once(path: Path, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{path} has {quote_name(twice)} twice: write it once")
    return table


def _of_client(path: Path, name: str, said: Any) -> list[str]:
    where = f"{path}, client {quote_name(name)}"
    if isinstance(said, dict):
        return _sentences(where, said)
    some = [said] if isinstance(said, str) else said
    good = isinstance(some, list) and all(isinstance(s, str) and s.count("{}") == 1 for s in some)
    if not good or not some:
        raise DataError(
            f"{where} must have a list of templates, each with {{}} once for the class name, or an "
            "object with a list of sentences for each class"
        )
    return [" ".join(s.split()) for s in some]


def _sentences(where: str, table: Mapping[str, Any]) -> list[str]:
    sentences: dict[str, list[str]] = {}
    seen: dict[str, str] = {}
    for name, some in table.items():
        some = [some] if isinstance(some, str) else some
        good = isinstance(some, list) and all(isinstance(s, str) and s.strip() for s in some)
        if not good or not some:
            raise DataError(f"{where}: '{name}' must have a list of sentences")
        if fold(name) in seen:
            raise DataError(f"{where} has '{name}' and '{seen[fold(name)]}': write the class once")
        seen[fold(name)] = name
        sentences[name] = [" ".join(s.split()) for s in some]
    if not sentences:
        raise DataError(f"{where} has no classes")
    return described(sentences)
