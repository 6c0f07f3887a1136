"""Families that come with core; they register through the same hooks as everyone else's."""
