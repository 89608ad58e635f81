"""Objectives of a policy and their axes."""
