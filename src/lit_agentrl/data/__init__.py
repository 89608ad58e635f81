"""Seed streams with disjoint splits."""
