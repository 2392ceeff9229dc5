"""What makes pages of code: ``mkdocs.yml`` calls ``hooks``; none of it is part of the site."""
