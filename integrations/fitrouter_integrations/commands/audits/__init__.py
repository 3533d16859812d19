"""Commands that audit an installation: whom it serves, and how safely."""
