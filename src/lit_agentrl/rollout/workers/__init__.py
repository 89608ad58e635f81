"""Workers: the places where episodes are played."""
