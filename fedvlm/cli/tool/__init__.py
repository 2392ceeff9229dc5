"""This command: its pages and its completion in a shell."""
