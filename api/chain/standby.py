"""When the one who follows a chain does not get on, though the node of another has more: that one takes the chain.

A node may stand still or be slow and answer all the same. Judged is what is read, by the node of who stands by: a block that this node
has had for a while and that is not read yet, while the distance has not become smaller. Who catches up comes nearer, and is left alone.
"""

PATIENCE = 30.0  # seconds


class Standby:
    """What one who stands by has seen: its own newest block, and up to where the chain was read then."""

    def __init__(self) -> None:
        self._since: tuple[float, int, int] | None = None

    def is_stuck(self, head: int, read: int, at: float) -> bool:
        """Return whether the follower does not get on; `at`: a moment in seconds that never goes back."""
        if self._since is None or read >= self._since[1]:
            self._since = at, head, read
            return False
        began, head_then, read_then = self._since
        if at - began < PATIENCE:
            return False
        self._since = at, head, read
        return head - read >= head_then - read_then
