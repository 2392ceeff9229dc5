"""Says which node the SuperLink made of a public key; run by Flower's own Python.

``python nodes.py LINK FILE`` prints the node's number, or nothing where the key is not registered:
``flwr supernode list`` tells no keys. Nothing of fedvlm is imported here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(link: str, file: Path) -> int:
    """Return the number of the node with the key in ``file``; 0: there is none."""
    from cryptography.hazmat.primitives import serialization  # optional: fedvlm[flower]
    from flwr.cli.flower_config import read_superlink_connection  # optional: fedvlm[flower]
    from flwr.cli.utils import init_http_client_from_connection  # optional: fedvlm[flower]
    from flwr.proto.control_pb2 import ListNodesRequest  # optional: fedvlm[flower]

    key = serialization.load_ssh_public_key(file.read_bytes()).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    client = init_http_client_from_connection(read_superlink_connection(link))
    try:
        told = client.ListNodes(ListNodesRequest()).nodes_info
    finally:
        client.close()
    return next((int(node.node_id) for node in told
                 if node.public_key == key and node.status != "unregistered"), 0)


if __name__ == "__main__":
    if number := main(sys.argv[1], Path(sys.argv[2])):
        os.write(1, f"{number}\n".encode())  # for who began this
