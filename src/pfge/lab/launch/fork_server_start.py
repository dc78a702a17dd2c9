"""What the server of `fork_server` imports first; no other process may import it."""

import ctypes
import signal

_SET_SIGNAL_AT_END_OF_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl.h

# It would notice the end of the driver only after it has imported everything; until then it keeps pipes open.
ctypes.CDLL(None).prctl(_SET_SIGNAL_AT_END_OF_PARENT, signal.SIGKILL)
# Ctrl-C reaches the driver too, which ends the workers.
signal.signal(signal.SIGINT, signal.SIG_IGN)
