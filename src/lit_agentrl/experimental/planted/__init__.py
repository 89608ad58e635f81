"""Planted errors, and a critic that must find them: CriticGPT, small."""
