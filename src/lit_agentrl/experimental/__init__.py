"""Methods that have not yet met the criterion for the core.

Each method has its own file, and the core imports none of them.
"""
