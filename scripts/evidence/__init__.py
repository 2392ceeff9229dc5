"""What makes this project's own pages: the speed benches and the published results."""
