"""Figures over settings of a method: a numeric axis, and parts that are left out."""
