"""The channels that messages leave through, one module each, and what they share."""
