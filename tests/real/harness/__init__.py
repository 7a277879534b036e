"""Starts the real parts that the tests run on, and offers the helpers that the tests call."""
