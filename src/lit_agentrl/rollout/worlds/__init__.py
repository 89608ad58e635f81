"""Pools of environments, in this process or in others."""
