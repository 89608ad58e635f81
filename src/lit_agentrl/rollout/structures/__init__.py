"""Which episodes a prompt's group is made of, one structure a file."""
