"""Everything else is in ``pyproject.toml``; this copies the top-level folders into the wheel."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = ("trainers", "configs", "scripts")
LEFT_OUT = ("__pycache__", "evidence")  # scripts/evidence makes this repository's own pages


class BuildWithFolders(build_py):
    """Puts ``FOLDERS`` below ``fedvlm/_repo``, where ``fedvlm.core.repository`` looks for them."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # a checkout has them beside the package
            return
        for folder in FOLDERS:
            target = Path(self.build_lib, "fedvlm", "_repo", folder)
            shutil.rmtree(target, ignore_errors=True)  # build/ may hold files that are gone
            shutil.copytree(folder, target, ignore=shutil.ignore_patterns(*LEFT_OUT))
        shutil.copy2("federated_main.py", Path(self.build_lib, "fedvlm", "_repo"))  # for scripts/


setup(cmdclass={"build_py": BuildWithFolders})
