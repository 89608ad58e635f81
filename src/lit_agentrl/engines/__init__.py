"""Engines: generate replies from token prefixes."""
