"""Sites: places where clients are, and what is done there."""
