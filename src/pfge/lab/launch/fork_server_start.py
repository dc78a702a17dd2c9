"""The first import of the server in `processes.py`; no other process may import it."""

import ctypes
import signal

_SET_SIGNAL_AT_END_OF_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl.h

# Without this the server would notice the end of its driver only after all imports, and keep pipes open.
ctypes.CDLL(None).prctl(_SET_SIGNAL_AT_END_OF_PARENT, signal.SIGKILL)
# On Ctrl-C the driver ends the workers.
signal.signal(signal.SIGINT, signal.SIG_IGN)
