"""Methods that have not met their bar yet: each in a file of its own, and the core imports none of them."""
