"""Search for the first wrong turn of a failed episode, and pairs at that turn: Step-DPO, arXiv 2406.18629."""
