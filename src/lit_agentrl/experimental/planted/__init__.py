"""A small form of CriticGPT: a critic that must find planted errors."""
