"""The hub: relays every event of a home to every app paired with it, at once, in order, nothing lost."""
