"""The first wrong turn of a failed episode, and pairs at it: Step-DPO, arXiv 2406.18629."""
