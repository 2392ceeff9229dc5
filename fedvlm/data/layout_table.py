"""The layouts of every known set, by name, in the order in which they are tried."""

from __future__ import annotations

from fedvlm.data.facts import FACTS
from fedvlm.data.layouts import Layout, Table
from fedvlm.data.layouts_coop import coop_layouts
from fedvlm.data.layouts_domains import DOMAIN_LAYOUTS

LAYOUTS: dict[str, tuple[Layout, ...]] = {
    **{name: coop_layouts(facts) for name, facts in FACTS.items()},
    **DOMAIN_LAYOUTS,
}

__all__ = ["LAYOUTS", "Table"]
