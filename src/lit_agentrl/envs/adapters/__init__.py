"""Worlds of other libraries and of other processes, as text games; each optional library is imported in one file."""
