"""Engines that use a server or another library."""
