"""Texts that episodes are played with, and that training leaves out."""
