"""Measurements. Nothing here is a test: tests assert behaviour, these print figures (`make bench`)."""
