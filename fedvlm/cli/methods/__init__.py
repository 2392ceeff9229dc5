"""Methods: list them, show their settings, write and check a new one."""
