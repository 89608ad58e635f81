"""Write the metrics of a run to files and trackers."""
