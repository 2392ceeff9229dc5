"""The page of published results: lanes of packed runs, their tables, figures and claims."""
