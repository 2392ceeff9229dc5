"""Generators of the site's pages: ``mkdocs.yml`` calls ``hooks``; not part of the site itself."""
