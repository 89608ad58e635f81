"""Lightning strategies that support rollouts: process placement, launch, work sharing and failure handling."""
