"""Help: this overview, and completion in a shell."""
