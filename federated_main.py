"""The main job: ``python federated_main.py --root DATA/ --dataset-config-file FILE``."""

import sys

from fedvlm.cli.main import console_script

if __name__ == "__main__":
    sys.exit(console_script())
