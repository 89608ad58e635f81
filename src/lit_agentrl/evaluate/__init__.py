"""Measure policies and models on games."""
