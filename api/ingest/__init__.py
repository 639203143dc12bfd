"""Taking events in: `pipeline` for live requests, `history` for imports. The meaning of an event is `api.language`'s."""
