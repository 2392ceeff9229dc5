"""The folder with configs, as a fixture."""

import pytest

from tests.job.house import make_house

house = pytest.fixture(make_house, name="house")
