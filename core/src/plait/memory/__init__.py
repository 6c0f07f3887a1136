"""Pages: who owns them, where they lie, and how typed rows go in and out."""
