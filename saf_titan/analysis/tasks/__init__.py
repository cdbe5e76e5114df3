"""Tasks whose examples say which words matter: readers of published files, and one that is generated."""
