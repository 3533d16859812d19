"""Offline replay: what another policy would have been worth, from the log, with honest intervals."""
