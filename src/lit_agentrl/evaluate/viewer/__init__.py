"""Show the recorded episodes of a run, token by token, in a browser."""
