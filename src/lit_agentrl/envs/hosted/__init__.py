"""Worlds and tools in other processes, reached through a protocol."""
