"""Collection and labelling of recorded episodes."""
