"""What lies around a trainer's file: read as text (``find``, ``defaults``, ``loop``), and imported.

Of a repository only the named file and what that file imports ever run (``imports``).
"""
