"""Engines behind a server or another library."""
