"""The main job: ``python federated_main.py --root DATA/ --dataset-config-file FILE``."""

import sys

from fedvlm.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
