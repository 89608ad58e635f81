"""Questions, programs and data sets."""
