"""Nothing of this project listens on TCP; what Flower opens stands in a written list.

Real engines are looked at where they run: ``tests/job/workers``, ``tests/job/sites`` and
``tests/job/engines`` (``make test-all``, ``make test-flower``).
"""

from __future__ import annotations

import ast
import os
import socket

from tests.jobs import REPOSITORY
from tests.listeners import listed, tcp_listeners

WORDS = {"create_server", "AF_INET", "AF_INET6", "bind", "uvicorn", "socketserver", "http.server",
         "start_server", "start_unix_server"}
OPENS = {  # file -> the words of ``WORDS`` in it, and what for
    "distributed/sockets/stream.py": {"bind"},  # a Unix socket: a site's
    "distributed/flower/carrier.py": {"bind"},  # a Unix socket: the server's, for Flower's relay
    "distributed/flower/place.py": {"create_server"},  # to find a free port; closed at once
    "distributed/flower/door.py": {"uvicorn"},  # the one open port
}


def test_a_listener_is_seen_while_it_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        mine = (os.getpid(), *door.getsockname())
        assert mine in tcp_listeners([os.getpid()])
    assert mine not in tcp_listeners([os.getpid()])


def test_no_code_of_this_project_listens_on_tcp_but_the_door() -> None:
    found = {}
    for path in sorted((REPOSITORY / "fedvlm").rglob("*.py")):
        told, text = set(), path.read_text(encoding="utf-8")
        if not any(word in text for word in WORDS):  # most files: not worth a look at the syntax
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute):
                told |= WORDS & {node.attr}
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                module = getattr(node, "module", None) or ""
                told |= WORDS & {module, *(a.name for a in node.names)}
        if told:
            found[str(path.relative_to(REPOSITORY / "fedvlm"))] = told
    assert found == OPENS


def test_the_written_list_has_one_address_that_others_reach() -> None:
    assert listed() == {"link": "127.0.0.1", "door": "--listen", "site": "127.0.0.1"}
