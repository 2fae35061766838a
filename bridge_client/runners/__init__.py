"""Who answers a message, and how what they print or stream becomes canonical events."""
