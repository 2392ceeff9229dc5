"""Results: numbers, tables, figures and pages of finished runs."""
