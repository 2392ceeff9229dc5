"""``python -m fedvlm <run|bench|list|show|config>``."""

import sys

from fedvlm.cli.main import console_script

if __name__ == "__main__":
    sys.exit(console_script())
