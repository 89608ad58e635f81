"""Workers: processes or threads that play episodes."""
