"""What is said about a run: statistics, the summary, the closing table."""
