"""``python -m fedvlm.compat SCRIPT ...``: a script that imports dassl, run as it is."""

from __future__ import annotations

import runpy
import sys

from fedvlm.compat.dassl import replace_dassl
from fedvlm.core.errors import FedvlmError

if __name__ == "__main__":
    if not sys.argv[1:]:
        raise SystemExit("python -m fedvlm.compat SCRIPT ...: give a file that imports dassl")
    sys.argv = sys.argv[1:]
    with replace_dassl():
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except FileNotFoundError as error:
            raise SystemExit(f"{error.filename}: {error.strerror}") from None
        except FedvlmError as error:
            raise SystemExit(str(error)) from None
