"""Layouts of the multi-domain sets."""

from __future__ import annotations

from fedvlm.data.layouts import Table

DOMAIN_LAYOUTS: Table = {}
