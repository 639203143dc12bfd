"""Channels to the outside, one file each."""
