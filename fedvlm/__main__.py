"""``python -m fedvlm``: the same command as ``fedvlm``."""

import sys

from fedvlm.cli.main import console_script

if __name__ == "__main__":
    sys.exit(console_script())
