"""Selection of the parts of a reply that count in loss and advantages."""
