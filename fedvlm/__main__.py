"""``python -m fedvlm <run|bench|list|show|config>``."""

import sys

from fedvlm.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
