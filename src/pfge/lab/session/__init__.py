"""An experiment set up on this machine."""

from pfge.lab.session.opening import open_run, open_session
from pfge.lab.session.session import Session

__all__ = ["Session", "open_run", "open_session"]
