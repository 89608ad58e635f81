"""Updates of networks on a batch, independent of Lightning."""
